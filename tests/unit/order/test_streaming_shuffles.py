"""Streaming's shuffles, in arrays that each test spells out.

That they are those of StreamingDataset is a promise; see `tests/promises/test_streaming_order.py`.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.streaming_shuffles import _sort, default_block_size, shuffle_nodes
from cloudload.system.arrays import Ids

ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive"]


def shuffle(
    algorithm: str,
    sizes: list[int],
    *,
    num_nodes: int = 1,
    seed: int = 7,
    epoch: int = 1,
    block_size: int = 4,
) -> list[list[int]]:
    """The shuffled IDs of each node."""
    nodes = shuffle_nodes(
        algorithm,
        np.array(sizes),
        num_nodes=num_nodes,
        seed=seed,
        epoch=epoch,
        block_size=block_size,
    )
    return [ids.tolist() for ids in nodes]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("naive", [[7, 3, 8, 0, 1, 10], [6, 11, 5, 9, 2, 4]]),
        ("py1s", [[9, 7, 8, 2, 0, 1], [3, 4, 6, 5, 11, 10]]),
        ("py2s", [[7, 11, 8, 1, 2, 0], [4, 5, 3, 6, 9, 10]]),
        ("py1br", [[8, 7, 9, 2, 0, 1], [4, 6, 10, 3, 5, 11]]),
        ("py1e", [[9, 7, 8, 2, 0, 1], [6, 5, 4, 3, 11, 10]]),
    ],
)
def test_a_shuffle_of_twelve_samples_never_changes(
    algorithm: str, expected: list[list[int]]
) -> None:
    """Shards of 3, 4 and 5 samples are permuted to 7…11 | 0…2 | 3…6, and cut after 6 samples."""
    assert shuffle(algorithm, [3, 4, 5], num_nodes=2) == expected


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    shards=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    num_nodes=st.integers(1, 6),
    block_size=st.integers(2, 30),
    epoch=st.integers(0, 3),
)
def test_the_nodes_share_all_samples_evenly_and_each_only_once(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    num_nodes, total = min(num_nodes, sum(shards)), sum(shards)
    nodes = shuffle(algorithm, shards, num_nodes=num_nodes, block_size=block_size, epoch=epoch)
    bounds = [node * total // num_nodes for node in range(num_nodes + 1)]
    assert list(map(len, nodes)) == [stop - start for start, stop in itertools.pairwise(bounds)]
    assert sorted(itertools.chain(*nodes)) == list(range(total))


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s"])
def test_a_node_reads_the_same_samples_in_every_epoch_in_another_order(algorithm: str) -> None:
    first, second = (shuffle(algorithm, [9, 8, 7, 6], num_nodes=3, epoch=epoch) for epoch in (0, 1))
    if algorithm != "py2s":  # it also shuffles shards before they are cut
        assert [sorted(node) for node in first] == [sorted(node) for node in second]
    assert first != second


def list_spans(ids: list[int], sizes: list[int]) -> list[int]:
    """The shard of each consecutive range of samples of a shard."""
    shards = np.searchsorted(np.cumsum(sizes), ids, side="right").tolist()
    return [shard for shard, _ in itertools.groupby(shards)]


def test_py1s_and_py2s_read_one_shard_after_the_other() -> None:
    sizes = [9, 0, 8, 7, 6]
    for algorithm in ("py1s", "py2s"):
        [ids] = shuffle(algorithm, sizes)
        assert sorted(list_spans(ids, sizes)) == [0, 2, 3, 4]
        assert ids != sorted(ids)


def test_py2s_shuffles_within_a_shard_by_the_seed_before_it_is_cut() -> None:
    """The nodes' parts of a shard are then not ranges of it, but are the same in every epoch."""
    epochs = [shuffle("py2s", [100], num_nodes=2, epoch=epoch) for epoch in (0, 1)]
    assert sorted(epochs[0][0]) == sorted(epochs[1][0]) != list(range(50))
    assert sorted(shuffle("py1s", [100], num_nodes=2)[0]) == list(range(50))


def test_py1br_moves_samples_only_within_a_block_of_up_to_five_quarters() -> None:
    [ids] = shuffle("py1br", [10_000], block_size=100)
    travel = np.abs(np.array(ids) - np.arange(10_000))
    # the first blocks of a node overlap, so a sample near its start can move twice
    assert travel[250:].max() < 125
    assert travel.mean() > 25


def test_py1e_moves_samples_of_short_spans_by_half_a_block() -> None:
    [ids] = shuffle("py1e", [10] * 1_000, block_size=100)
    assert len(list_spans(ids, [10] * 1_000)) > 5_000
    # sorted by shard, the samples of a shard are up to a block apart
    order = np.argsort(np.array(ids) // 10, kind="stable").reshape(-1, 10)
    assert 60 < np.ptp(order, axis=1).max() <= 145


def test_py1e_does_not_move_samples_of_spans_as_long_as_a_block() -> None:
    sizes = [125, 130, 200]
    assert shuffle("py1e", sizes, block_size=100) == shuffle("py1s", sizes)
    assert shuffle("py1e", [60] * 7, block_size=100) != shuffle("py1s", [60] * 7)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("py1e", "1e9ace96c993d1c2"),
        ("py1br", "fcc7f888d192d351"),
        ("py1s", "46e3f0d836fa0f8b"),
        ("py2s", "514008147cd1c1e1"),
        ("naive", "d90757a3da14dc41"),
    ],
)
def test_a_shuffle_of_many_samples_never_changes(algorithm: str, expected: str) -> None:
    """A node has 150,000 samples, so py1e sorts it in parts of at least 2^16 samples."""
    nodes = shuffle(algorithm, [1_000, 3_000, 500] * 100, num_nodes=3, seed=23, block_size=2_000)
    ids = np.concatenate(nodes).astype("<i8")
    assert hashlib.sha256(ids.tobytes()).hexdigest()[:16] == expected


def ids_of(algorithm: str, total: int) -> Ids:
    return next(
        shuffle_nodes(algorithm, np.array([total]), num_nodes=1, seed=7, epoch=0, block_size=4)
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ids_are_narrow(algorithm: str) -> None:
    assert ids_of(algorithm, 9).dtype == np.uint32


def test_an_unknown_shuffle_is_named() -> None:
    with pytest.raises(ValueError, match=r"^unknown shuffle_algo 'py1b'$"):
        shuffle("py1b", [3])


@pytest.mark.parametrize(
    ("num_nodes", "block_size"), [(1, 4_000_000), (15, 266_666), (16, 262_144), (64, 262_144)]
)
def test_the_default_block_shrinks_with_the_nodes_down_to_2_to_the_18(
    num_nodes: int, block_size: int
) -> None:
    assert default_block_size(num_nodes) == block_size


def test_of_samples_that_land_on_one_place_the_earlier_is_first() -> None:
    places = np.array([3.0, 1.0, 2.0, 1.0, 3.0, 1.0, 2.0 + 1e-12, 2.0])
    assert _sort(places)[0].tolist() == np.argsort(places, kind="stable").tolist()
    crowded = np.random.default_rng(0).uniform(0, 1e-6, 500).round(8) + np.repeat([0.0, 1e9], 250)
    assert _sort(crowded)[0].tolist() == np.argsort(crowded, kind="stable").tolist()
