"""The canonical order is StreamingDataset's own, less the samples that it repeats."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from corpora import write_mds
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.order import EpochOrders, OrderConfig, canonical_order, interleave

SHARDS = [7, 30, 1, 12, 25, 9, 18]


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", None])
@pytest.mark.parametrize("num_nodes", [1, 4, 8])
def test_a_real_streaming_dataset_yields_our_order(tmp_path: Path, algorithm: str | None, num_nodes: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import streaming

    streaming.base.util.clean_stale_shared_memory()
    folder = write_mds(tmp_path / "corpus", [str(number) for number in range(sum(SHARDS))], shard_samples=SHARDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = streaming.StreamingDataset(
            local=folder,
            shuffle=algorithm is not None,
            shuffle_algo=algorithm or "py1e",
            shuffle_seed=23,
            shuffle_block_size=20,
            num_canonical_nodes=num_nodes,
            batch_size=1,
        )
        epochs = [[int(sample["text"]) for sample in dataset] for _ in range(2)]
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, num_nodes, 23)
    for epoch, theirs in enumerate(epochs):
        ours = canonical_order(np.array(SHARDS), config, epoch).tolist()
        # what Streaming repeats, it has given before
        without_repeats = list(dict.fromkeys(theirs))
        assert ours == without_repeats
        assert sorted(ours) == list(range(sum(SHARDS)))
    assert algorithm is None or epochs[0] != epochs[1]


@settings(max_examples=300)
@given(num_samples=st.integers(1, 200), num_nodes=st.integers(1, 20))
def test_interleaving_is_what_streamings_partition_gives_to_one_worker(num_samples: int, num_nodes: int) -> None:
    from streaming.base.partition import get_partitions

    num_nodes = min(num_nodes, num_samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_partitions("relaxed", num_samples, num_nodes, 1, 1, 1, 1).ravel().tolist()
    assert interleave(np.arange(num_samples), num_nodes).tolist() == list(dict.fromkeys(theirs))


def test_a_position_belongs_to_its_canonical_node() -> None:
    order = interleave(np.arange(11), 4)
    nodes = [range(0, 2), range(2, 5), range(5, 8), range(8, 11)]
    assert order.tolist() == [0, 2, 5, 8, 1, 3, 6, 9, 4, 7, 10]
    assert all(order[position] in nodes[position % 4] for position in range(8))


def test_an_order_on_disk_is_the_one_in_memory_and_is_built_once(tmp_path: Path) -> None:
    config = OrderConfig(True, "py1e", 20, 4, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config)
    for epoch in (0, 1, 5):
        assert orders(epoch).tolist() == canonical_order(np.array(SHARDS), config, epoch).tolist()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert EpochOrders(tmp_path, np.array(SHARDS), config)(5).tolist() == orders(5).tolist()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == written
    other = EpochOrders(tmp_path, np.array(SHARDS), OrderConfig(True, "py1e", 20, 4, 2))
    assert other(5).tolist() != orders(5).tolist()
