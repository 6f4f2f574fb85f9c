"""The canonical order is StreamingDataset's order without the samples that it repeats."""

from __future__ import annotations

import collections
import warnings
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.order.epoch_order import OrderConfig, Sampling, reads_per_shard
from cloudload.order.streaming_shuffles import shuffle_nodes
from testkit.both_readers import write_numbered
from testkit.examples import EXAMPLES
from testkit.reference_order import Weight, canonical_order, interleave, sampling_of
from testkit.streaming_work import streaming_dataset

SHARDS = [7, 30, 1, 12, 25, 9, 18]
STREAMS = [[7, 30, 1, 12], [1], [25, 9, 18], [4, 4, 3]]


def read_by_streaming(
    num_epochs: int, streams: list[tuple[str, Weight]], algorithm: str | None, num_nodes: int
) -> tuple[list[list[int]], int]:
    """Return the samples that a StreamingDataset reads in each epoch, and its epoch size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import streaming

        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(
            streams=[streaming.Stream(local=folder, **weight) for folder, weight in streams],
            shuffle=algorithm is not None,
            shuffle_algo=algorithm or "py1e",
            shuffle_seed=23,
            shuffle_block_size=20,
            num_canonical_nodes=num_nodes,
            batch_size=1,
        )
        epochs = [[int(sample["text"]) for sample in dataset] for _ in range(num_epochs)]
    return epochs, dataset.epoch_size


@pytest.mark.usefixtures("alone_with_streaming")
@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", None])
@pytest.mark.parametrize("num_nodes", [1, 4, 8])
def test_a_real_streaming_dataset_yields_our_order(
    tmp_path: Path, algorithm: str | None, num_nodes: int
) -> None:
    folder = write_numbered(tmp_path / "corpus", SHARDS)
    epochs, _ = read_by_streaming(2, [(folder, {})], algorithm, num_nodes)
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, num_nodes, 23)
    for epoch, theirs in enumerate(epochs):
        ours = canonical_order(np.array(SHARDS), config, epoch).tolist()
        # Streaming repeats only samples that it has already read, so keep each one's first read
        without_repeats = list(dict.fromkeys(theirs))
        assert ours == without_repeats
        assert sorted(ours) == list(range(sum(SHARDS)))
    assert algorithm is None or epochs[0] != epochs[1]


@settings(max_examples=5 * EXAMPLES)
@given(num_samples=st.integers(1, 200), num_nodes=st.integers(1, 20))
def test_interleaving_is_what_streamings_partition_gives_to_one_worker(
    num_samples: int, num_nodes: int
) -> None:
    from streaming.base.partition import get_partitions

    num_nodes = min(num_nodes, num_samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_partitions("relaxed", num_samples, num_nodes, 1, 1, 1, 1).ravel().tolist()
    assert interleave(np.arange(num_samples), num_nodes).tolist() == list(dict.fromkeys(theirs))


def without_padding(ids: list[int], num_positions: int, num_nodes: int) -> list[int]:
    """Return the samples of one worker, without those that Streaming's partition repeats as
    padding."""
    from streaming.base.partition import get_partitions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = get_partitions("relaxed", num_positions, num_nodes, 1, 1, 1, 1).ravel()
    assert len(places) == len(ids)
    return [ids[first] for first in sorted(np.unique(places, return_index=True)[1])]


@pytest.mark.usefixtures("alone_with_streaming")
@pytest.mark.parametrize(
    "weights",
    [
        [{"repeat": 2}, {}, {}, {}],
        [{"repeat": 0.5}, {}, {"repeat": 1.37}, {"repeat": 1.37}],
        [{"choose": 20}, {"choose": 5}, {"choose": 120}, {"choose": 1}],
        [{"repeat": 0.29}, {"repeat": 3.99}, {}, {"choose": 22}],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("algorithm", "num_nodes"), [("py1e", 8), ("py1br", 4), ("py1s", 1), (None, 4)]
)
def test_a_real_streaming_dataset_repeats_and_chooses_as_we_do(
    tmp_path: Path, weights: list[Weight], algorithm: str | None, num_nodes: int
) -> None:
    starts = accumulate(map(sum, STREAMS), initial=0)
    folders = [
        write_numbered(tmp_path / str(number), shards, start)
        for number, (shards, start) in enumerate(zip(STREAMS, starts, strict=False))
    ]
    streams = list(zip(folders, weights, strict=True))
    epochs, epoch_size = read_by_streaming(3, streams, algorithm, num_nodes)
    sampling = sampling_of(STREAMS, weights)
    assert sampling is not None
    assert sampling.num_positions == epoch_size
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, num_nodes, 23)
    for epoch, theirs in enumerate(epochs):
        ours = canonical_order(np.concatenate(STREAMS), config, epoch, sampling).tolist()
        assert ours == without_padding(theirs, sampling.num_positions, num_nodes)
    if any(choose % sum(shards) for choose, shards in zip(sampling.choose, STREAMS, strict=True)):
        reads = [collections.Counter(epoch) for epoch in epochs]
        assert reads[0] != reads[1] != reads[2]


@st.composite
def weighted_streams(draw: st.DrawFn) -> tuple[list[list[int]], list[Weight]]:
    sizes = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any)
    streams = draw(st.lists(sizes, min_size=1, max_size=4))
    weights = []
    for shards in streams:
        chosen = {"choose": st.integers(1, 3 * sum(shards) + 1)}
        repeated = {"repeat": st.floats(1, 3.5) | st.integers(1, 3) | st.just(1.5 / sum(shards))}
        kinds: Any = st.fixed_dictionaries(chosen) | st.fixed_dictionaries(repeated) | st.just({})
        weights.append(draw(kinds))
    return streams, weights


@settings(max_examples=3 * EXAMPLES)
@given(
    weighted=weighted_streams(),
    algorithm=st.sampled_from(["py1e", "py1br", "py1s", "py2s", "naive", None]),
    num_nodes=st.integers(1, 6),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_any_repeat_and_choose_is_what_streaming_makes_of_it(
    weighted: tuple[list[list[int]], list[Weight]],
    algorithm: str | None,
    num_nodes: int,
    seed: int,
    epoch: int,
) -> None:
    from streaming import Stream
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    streams, weights = weighted
    samples, shards = np.array([sum(shards) for shards in streams]), np.concatenate(streams)
    theirs = [SimpleNamespace(**weight) for weight in weights]
    epoch_size = Stream.apply_weights(theirs, samples, None, seed)
    sampling = sampling_of(streams, weights)
    if sampling is None:
        assert [stream.choose for stream in theirs] == samples.tolist()
        sampling = Sampling(tuple(map(len, streams)), tuple(samples.tolist()))
    assert sampling.choose == tuple(stream.choose for stream in theirs)
    assert sampling.num_positions == epoch_size

    num_nodes = min(num_nodes, epoch_size)
    dataset = streaming_dataset(
        streams, weights, algorithm, num_nodes=num_nodes, seed=seed, block_size=8
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = generate_work("random", dataset, World(1, 1, 1, 0), epoch, 0).ravel().tolist()
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 8, num_nodes, seed)
    ours = canonical_order(shards, config, epoch, sampling).tolist()
    assert ours == without_padding(work, epoch_size, num_nodes)

    # each stream has its share of the reads, and the counts of its samples differ by at most 1
    reads = np.bincount(ours, minlength=sum(samples))
    for stream, start, choose in zip(
        samples, np.cumsum(samples) - samples, sampling.choose, strict=True
    ):
        of_stream = reads[start : start + stream]
        assert of_stream.sum() == choose
        assert sorted(of_stream) == sorted(
            [choose // stream] * (stream - choose % stream)
            + [choose // stream + 1] * (choose % stream)
        )


@given(
    shards=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    choose=st.integers(1, 400),
    seed=st.integers(0, 99),
)
def test_a_draw_is_divided_among_the_shards_as_streaming_does(
    shards: list[int], choose: int, seed: int
) -> None:
    from streaming.base.sampling import get_sampling

    theirs = get_sampling(np.array(shards), choose, 1, seed, 0, False)
    assert reads_per_shard(np.array(shards), choose, seed).tolist() == theirs.tolist()


@settings(max_examples=5 * EXAMPLES)
@given(
    algorithm=st.sampled_from(["py1e", "py1br", "py1s", "py2s", "naive"]),
    shards=st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any),
    num_nodes=st.integers(1, 20),
    block_size=st.integers(2, 90),
    epoch=st.integers(0, 5),
)
def test_our_shuffles_are_streamings(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    check_shuffle(algorithm, shards, min(num_nodes, sum(shards)), block_size, epoch)


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive"])
def test_our_shuffles_are_streamings_where_they_go_by_parts(algorithm: str) -> None:
    for block_size in (2_000, 60_000):
        check_shuffle(algorithm, [1_000, 3_000, 500] * 100, 3, block_size, 1)


def check_shuffle(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    from streaming.base.shuffle import get_shuffle

    sizes = np.array(shards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_shuffle(algorithm, sizes, num_nodes, 23, epoch, block_size)
    nodes = list(
        shuffle_nodes(
            algorithm, sizes, num_nodes=num_nodes, seed=23, epoch=epoch, block_size=block_size
        )
    )
    assert np.concatenate(nodes).tolist() == theirs.tolist()
    bounds = np.arange(num_nodes + 1) * len(theirs) // num_nodes
    assert list(map(len, nodes)) == np.diff(bounds).tolist()
