"""In an epoch's order, nodes take turns, and sampling repeats or leaves out samples.

That the samples drawn are those of StreamingDataset is a promise; see
`tests/promises/test_streaming_order.py`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order import epoch_order
from cloudload.order.epoch_order import (
    OrderConfig,
    Sampling,
    fill_order,
    first_rounds,
    id_dtype,
    positions_of,
    reads_per_shard,
    resample,
    seekable_order,
)
from cloudload.order.seekable import SeekableOrder, Shuffle
from testkit.reference_order import canonical_order, interleave, sampling_of

SHARDS = [7, 30, 1, 12, 25, 9, 18]


def test_a_position_belongs_to_its_canonical_node() -> None:
    order = interleave(np.arange(11), 4)
    nodes = [range(0, 2), range(2, 5), range(5, 8), range(8, 11)]
    assert order.tolist() == [0, 2, 5, 8, 1, 3, 6, 9, 4, 7, 10]
    assert all(order[position] in nodes[position % 4] for position in range(8))


@pytest.mark.parametrize(
    ("num_samples", "num_nodes", "expected"),
    [
        (6, 2, [0, 3, 1, 4, 2, 5]),
        (7, 2, [0, 3, 1, 4, 2, 5, 6]),  # node 1 has one sample more, which comes last
        (4, 3, [0, 1, 2, 3]),
        (8, 3, [0, 2, 5, 1, 3, 6, 4, 7]),  # nodes 1 and 2 have three samples, in this order
        (5, 1, [0, 1, 2, 3, 4]),
        (2, 2, [0, 1]),
        (0, 2, []),
    ],
)
def test_without_shuffle_nodes_take_turns_in_order(
    num_samples: int, num_nodes: int, expected: list[int]
) -> None:
    config = OrderConfig(False, "py1e", 1, num_nodes, 0)
    assert canonical_order(np.array([num_samples]), config, 5).tolist() == expected


def test_an_order_is_written_in_the_dtype_of_its_array() -> None:
    order = np.full(6, 99, np.uint8)
    fill_order(order, np.array([2, 4]), OrderConfig(False, "py1e", 1, 2, 0), 0)
    assert order.tolist() == [0, 3, 1, 4, 2, 5]
    assert order.dtype == np.uint8


def test_each_node_reads_its_own_shuffled_samples() -> None:
    """With seed 7 in epoch 1, py1s shuffles 12 samples to 9 7 8 2 0 1 | 3 4 6 5 11 10."""
    config = OrderConfig(True, "py1s", 4, 2, 7)
    order = canonical_order(np.array([3, 4, 5]), config, 1)
    assert order.tolist() == [9, 3, 7, 4, 8, 6, 2, 5, 0, 11, 1, 10]


def test_sampled_orders_map_the_shuffle_to_the_samples_drawn() -> None:
    """Runs 0 1 2 · 0 1 2 · 3 4 5 6 are shuffled like shards of 3, 3 and 4 samples."""
    config, sampling = OrderConfig(True, "py1s", 4, 1, 7), Sampling((1, 1), (6, 4))
    like = canonical_order(np.array([3, 3, 4]), config, 1)
    order = canonical_order(np.array([3, 4]), config, 1, sampling)
    assert order.tolist() == np.array([0, 1, 2, 0, 1, 2, 3, 4, 5, 6])[like].tolist()


@pytest.mark.parametrize("shuffle_algo", ["seekable", "py1b"])
def test_an_order_that_no_shuffle_fills_is_refused(shuffle_algo: str) -> None:
    config = OrderConfig(True, shuffle_algo, 4, 1, 7)
    with pytest.raises(ValueError, match=f"unknown shuffle_algo '{shuffle_algo}'"):
        fill_order(np.empty(3, np.int64), np.array([3]), config, 0)


@pytest.mark.parametrize(("shuffle", "block_size"), [(True, 6), (False, None)])
def test_a_seekable_order_has_the_settings_of_its_config(
    shuffle: bool, block_size: int | None
) -> None:
    sizes, config = np.array([4, 0, 9, 2]), OrderConfig(shuffle, "seekable", 6, 2, 17)
    plain = SeekableOrder(sizes, Shuffle(2, 17, block_size), 3)
    assert seekable_order(sizes, config, 3)[:].tolist() == plain[:].tolist()
    weighted = SeekableOrder(sizes, Shuffle(2, 17, block_size), 3, [(1, 7), (3, 5)])
    sampled = seekable_order(sizes, config, 3, Sampling((1, 3), (7, 5)))
    assert sampled[:].tolist() == weighted[:].tolist()


def test_a_sample_is_at_all_positions_that_read_it() -> None:
    assert positions_of(np.array([4, 2, 4, 0]), 4).tolist() == [0, 2]
    assert positions_of(np.array([4, 2, 4, 0]), 1).tolist() == []
    order = SeekableOrder(np.array([3]), Shuffle(1, 17, 4), 0, [(1, 6)])
    assert positions_of(order, 2).tolist() == np.flatnonzero(order[:] == 2).tolist()


STREAMS = [[7, 30, 1, 12], [1], [25, 9, 18], [4, 4, 3]]
"""The number of samples in each shard, by stream. The streams have 50, 1, 52 and 11 samples."""


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", None])
def test_a_sampling_of_each_sample_once_is_the_plain_order(algorithm: str | None) -> None:
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, 4, 1)
    assert sampling_of(STREAMS, [{}, {"repeat": 1}, {"choose": 52}, {"repeat": 1.05}]) is None
    plain = canonical_order(np.array(SHARDS), config, 3)
    assert (
        canonical_order(np.array(SHARDS), config, 3, Sampling((3, 4), (38, 64))).tolist()
        == plain.tolist()
    )


def test_without_shuffle_an_upsampled_stream_reads_on_from_its_start() -> None:
    config = OrderConfig(False, "py1e", 20, 1, 1)
    order = canonical_order(np.array([2, 2, 3]), config, 0, Sampling((2, 1), (8, 6)))
    assert order.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 6, 4, 5, 6]


# ---------------------------------------------------------------- samples drawn

TWO_STREAMS = np.array([3, 0, 4, 5])
"""Samples 0 to 6 in the first three shards, and 7 to 11 in the last one."""
DRAWN = Sampling((3, 1), (10, 12))
UNSHUFFLED = OrderConfig(False, "py1e", 4, 1, 7)


def runs(config: OrderConfig, epoch: int) -> list[list[int]]:
    """The sample IDs of each run."""
    ids, sizes = resample(TWO_STREAMS, config, epoch, DRAWN)
    return [run.tolist() for run in np.split(ids, np.cumsum(sizes)[:-1])]


def test_a_run_is_a_pass_over_a_shard_or_the_sorted_draw_of_its_remainder() -> None:
    """Of 10 samples, 7 are a pass over the first stream. Its 3 more are 1 and 2 of its shards."""
    assert runs(UNSHUFFLED, 0) == [
        [0, 1, 2],
        [2],
        [3, 4, 5, 6],
        [4, 5],
        [7, 8, 9, 10, 11],
        [7, 8, 9, 10, 11],
        [9, 10],
    ]


def test_every_epoch_draws_other_samples_but_divides_them_alike_without_shuffle() -> None:
    assert runs(UNSHUFFLED, 1)[3:] == [[3, 6], [7, 8, 9, 10, 11], [7, 8, 9, 10, 11], [7, 8]]
    sizes = {tuple(map(len, runs(UNSHUFFLED, epoch))) for epoch in range(20)}
    assert sizes == {(3, 1, 4, 2, 5, 5, 2)}
    shuffled = OrderConfig(True, "py1e", 4, 1, 7)
    assert len({tuple(map(len, runs(shuffled, epoch))) for epoch in range(20)}) > 1


def test_the_seed_and_the_epoch_are_added_as_in_streaming() -> None:
    shuffled = [OrderConfig(True, "py1e", 4, 1, seed) for seed in (7, 8)]
    assert runs(shuffled[0], 4) == runs(shuffled[1], 3)


def test_streams_that_are_read_once_have_a_run_per_shard() -> None:
    ids, sizes = resample(TWO_STREAMS, UNSHUFFLED, 0, Sampling((3, 1), (7, 5)))
    assert ids.tolist() == list(range(12))
    assert sizes.tolist() == [3, 4, 5]
    assert [str(array.dtype) for array in (ids, sizes)] == ["uint32", "int64"]


@given(
    streams=st.lists(
        st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any), min_size=1, max_size=3
    ),
    rates=st.lists(st.floats(0.1, 3.2), min_size=3, max_size=3),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_a_stream_gives_its_samples_as_often_as_each_other_and_draws_none_twice(
    streams: list[list[int]], rates: list[float], shuffle: bool, epoch: int
) -> None:
    sizes = np.concatenate(streams)
    choose = [max(1, int(rate * sum(each))) for rate, each in zip(rates, streams, strict=False)]
    sampling = Sampling(tuple(map(len, streams)), tuple(choose))
    ids, run_sizes = resample(sizes, OrderConfig(shuffle, "py1e", 4, 1, 7), epoch, sampling)
    assert run_sizes.all()
    assert all(np.all(np.diff(run.astype(int)) > 0) for run in np.split(ids, np.cumsum(run_sizes)))
    reads, first = Counter(ids.tolist()), 0
    for shards, chosen in zip(streams, choose, strict=True):
        counts = [reads[sample] for sample in range(first, first + sum(shards))]
        assert sum(counts) == chosen
        assert set(counts) <= {chosen // sum(shards), chosen // sum(shards) + 1}
        first += sum(shards)


@pytest.mark.parametrize(
    ("choose", "reads"),
    [(7, [3, 0, 4]), (14, [6, 0, 8]), (10, [4, 0, 6]), (3, [1, 0, 2]), (0, [0, 0, 0])],
)
def test_the_remainder_of_a_stream_is_divided_among_its_shards(
    choose: int, reads: list[int]
) -> None:
    assert reads_per_shard(np.array([3, 0, 4]), choose, 7).tolist() == reads


def test_a_stream_without_samples_is_read_zero_times() -> None:
    assert reads_per_shard(np.array([0, 0]), 0, 7).tolist() == [0, 0]


def test_a_large_remainder_is_divided_like_its_parts() -> None:
    """It is drawn in parts of 2^20 samples. Here, all but one sample of each stream are drawn."""
    sizes = np.array([1_500_000, 0, 1_000_000])
    reads = reads_per_shard(sizes, 2_499_999, 7)
    assert (sizes - reads).sum() == 1
    assert (sizes - reads >= 0).all()


@pytest.mark.parametrize(
    ("total", "dtype"), [((1 << 32) - 1, np.uint32), (1 << 32, np.int64)], ids=str
)
def test_ids_are_narrow_if_they_fit(total: int, dtype: type) -> None:
    assert id_dtype(np.array([total - 7, 7])) == dtype


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=40),
    nodes=st.integers(1, 6),
    block=st.integers(2, 50),
    seed=st.integers(0, 99),
    rounds=st.integers(1, 20),
)
def test_the_first_rounds_are_those_of_the_whole_order(
    sizes: list[int], nodes: int, block: int, seed: int, rounds: int
) -> None:
    shards, config = np.array(sizes), OrderConfig(True, "py1e", block, nodes, seed)
    if shards.sum() >= nodes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epoch_order, "_MOST_ROUNDS", rounds)
            first = first_rounds(shards, config, 1)
        assert len(first) == min(rounds, shards.sum() // nodes) * nodes
        assert first.tolist() == canonical_order(shards, config, 1)[: len(first)].tolist()
