"""A seekable order is a permutation with shuffle windows of the right width. Reading can start
immediately at any position of any epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.order.epoch_order import OrderConfig, Sampling, positions_of
from cloudload.order.order_cache import EpochOrders
from cloudload.order.seekable import SeekableOrder, ShardSpans, Shuffle, lay_spans, weigh
from testkit.examples import EXAMPLES
from testkit.reference_order import canonical_order, interleave, order_of


def check_order(
    sizes: list[int], num_nodes: int, block_size: int | None, seed: int, epoch: int
) -> None:
    order = order_of(sizes, num_nodes, block_size, seed, epoch)
    samples = order[:]
    assert np.bincount(samples, minlength=sum(sizes)).tolist() == [1] * sum(sizes)
    for position, sample in enumerate(samples.tolist()):
        assert order.positions_of(sample).tolist() == [position]


def test_every_order_of_a_few_samples_is_a_permutation() -> None:
    for number in range(1, 4):
        for sizes in itertools.product((0, 1, 5), repeat=number):
            for num_nodes in {1, 2, 7} & set(range(1, sum(sizes) + 1)):
                for block_size in (2, 8):
                    samples = order_of(list(sizes), num_nodes, block_size)[:]
                    assert sorted(samples.tolist()) == list(range(sum(sizes)))


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
    num_nodes=st.integers(1, 24),
    block_size=st.integers(2, 100) | st.none(),
    seed=st.integers(0, (1 << 32) - 1),
    epoch=st.integers(0, 1 << 40),
)
def test_any_order_is_a_permutation_and_finds_the_positions_of_each_sample(
    sizes: list[int], num_nodes: int, block_size: int | None, seed: int, epoch: int
) -> None:
    check_order(sizes, min(num_nodes, sum(sizes)), block_size, seed, epoch)


def test_without_shuffle_it_is_the_plain_order() -> None:
    assert order_of([3, 0, 5, 9, 1], 4, None)[:].tolist() == interleave(np.arange(18), 4).tolist()


def test_a_node_reads_the_same_samples_in_every_epoch_in_another_order() -> None:
    sizes = [7, 30, 1, 12, 25, 9, 16]
    epochs = [order_of(sizes, 4, 20, epoch=epoch)[:100] for epoch in (0, 1, 2)]
    for node in range(4):
        of_node = [epoch[node::4].tolist() for epoch in epochs]
        assert sorted(of_node[0]) == sorted(of_node[1]) == sorted(of_node[2])
        assert of_node[0] != of_node[1] != of_node[2]
    other_run = order_of(sizes, 4, 20, seed=2)[:100]
    assert sorted(other_run[::4].tolist()) != sorted(epochs[0][::4].tolist())


def test_samples_are_shuffled_within_blocks_and_not_beyond() -> None:
    # with one shard and one node, documents move only within their shuffle block
    samples = order_of([100_000], 1, 1_000)[:]
    travel = np.abs(samples - np.arange(100_000))
    assert travel.max() < 1_500
    assert 320 < travel.mean() < 345  # a third of a block, because all places are equally likely
    shards = order_of([100] * 1_000, 2, 400)[:] // 100
    for node in (0, 1):
        in_use = [
            len(set(shards[node::2][start : start + 400].tolist()))
            for start in range(0, 50_000, 400)
        ]
        assert max(in_use) <= 10


def test_an_order_is_asked_as_an_array_is() -> None:
    order = order_of([7, 30, 1, 12], 4, 20)
    array = np.asarray(order)
    assert array.dtype == np.int64
    assert len(order) == len(array) == 50
    # an order is iterable, but its type does not declare this
    assert list(cast("Iterable[int]", order)) == array.tolist()
    assert [order[position] for position in range(50)] == array.tolist()
    assert isinstance(order[3], int)
    assert order[-1] == order[np.int64(49)] == array[49]
    for wanted in (
        slice(3, 40, 7),
        slice(None, None, -1),
        np.array([[4, 4], [49, -50]]),
        np.array([], np.int64),
    ):
        assert order[wanted].tolist() == array[wanted].tolist()
    for strange in (np.array([0.5]), np.ones(50, bool)):
        with pytest.raises(IndexError, match="Index an order with integers"):
            order[strange]
    for beyond in (50, -51, np.array([0, 50])):
        with pytest.raises(
            IndexError, match=r"positions .* are out of range for an epoch of 50 samples"
        ):
            order[beyond]


def test_orders_are_what_they_always_were() -> None:
    assert order_of([4, 0, 9, 2], 2, 6, seed=17)[:].tolist() == [
        10,
        12,
        6,
        13,
        4,
        14,
        5,
        11,
        9,
        1,
        8,
        0,
        7,
        2,
        3,
    ]
    huge = SeekableOrder(np.full(2_000, 5_000_000), Shuffle(64, 17, 20_000_000), 3)
    assert huge[np.array([0, 1, 5_000_000_000, 9_999_999_999])].tolist() == [
        2303201874,
        4260349928,
        6059639900,
        3259691103,
    ]


@given(
    streams=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), min_size=1, max_size=3
    ),
    rates=st.lists(st.floats(0.05, 3.2), min_size=3, max_size=3),
    num_nodes=st.integers(1, 8),
    block_size=st.integers(2, 30) | st.none(),
    epoch=st.integers(0, 5),
)
def test_each_stream_gives_what_it_is_to_give_each_sample_as_often_as_any_other(
    streams: list[list[int]], rates: list[float], num_nodes: int, block_size: int | None, epoch: int
) -> None:
    sizes = np.concatenate(streams)
    choose = [max(1, int(rate * sum(stream))) for rate, stream in zip(rates, streams, strict=False)]
    weights = [(len(stream), chosen) for stream, chosen in zip(streams, choose, strict=True)]
    order = SeekableOrder(
        sizes, Shuffle(min(num_nodes, sum(choose)), 3, block_size), epoch, weights
    )
    samples = order[:]
    assert len(samples) == sum(choose)
    reads = np.bincount(samples, minlength=sizes.sum())
    first = 0
    for stream, chosen in zip(streams, choose, strict=True):
        of_stream = reads[first : first + sum(stream)]
        assert of_stream.sum() == chosen
        assert set(of_stream.tolist()) <= {chosen // sum(stream), -(-chosen // sum(stream))}
        first += sum(stream)
    for sample in range(sizes.sum()):
        assert order.positions_of(sample).tolist() == np.flatnonzero(samples == sample).tolist()


def test_what_is_drawn_is_another_in_every_epoch_and_all_in_the_end() -> None:
    sizes = np.array([1] * 10 + [20])
    epochs = [SeekableOrder(sizes, Shuffle(1, 3, 8), epoch, [(11, 10)])[:] for epoch in range(60)]
    reads = np.bincount(np.concatenate(epochs), minlength=30)
    assert (reads > 6).all()
    assert (reads < 40).all()


@pytest.mark.parametrize(
    ("num_samples", "block_size", "seed", "edges"),
    [
        (30, 8, 1, [9, 17, 25]),
        (30, 8, 2, [6, 14, 22]),  # the last block is as large as any
        (30, 8, 3, [5, 13, 21]),  # it has 9 samples, because 1 sample is no block
        (30, 4, 3, [2, 6, 10, 14, 18, 22, 26]),
        (9, 4, 1, [4]),
        (9, 4, 2, [3, 7]),  # the last block is half as large, the least that it can be
        (5, 8, 1, []),
    ],
)
def test_samples_stay_in_their_block(
    num_samples: int, block_size: int, seed: int, edges: list[int]
) -> None:
    """The first block is half to one and a half times as large as the others, by the seed."""
    samples = order_of([num_samples], 1, block_size, seed)[:]
    for start, stop in itertools.pairwise([0, *edges, num_samples]):
        assert sorted(samples[start:stop].tolist()) == list(range(start, stop))
    uses = SeekableOrder(np.ones(num_samples, np.int64), Shuffle(1, seed, block_size), 0).uses()
    assert sorted({*uses.first_rounds.tolist(), *uses.stop_rounds.tolist()}) == [
        0,
        *edges,
        num_samples,
    ]


def test_without_shuffle_a_node_uses_its_shards_in_order() -> None:
    """Node 0 reads 6 samples of shard 0 and one of shard 1, and node 1 the other 4, and shard 2."""
    uses = order_of([6, 5, 4], 2, None).uses()
    assert uses.nodes.tolist() == [0, 0, 1, 1]
    assert uses.shards.tolist() == [0, 1, 1, 2]
    assert uses.first_rounds.tolist() == [0, 6, 0, 4]
    assert uses.stop_rounds.tolist() == [6, 7, 4, 8]


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    num_nodes=st.integers(1, 5),
    block_size=st.integers(2, 30) | st.none(),
    epoch=st.integers(0, 3),
)
def test_a_node_reads_a_shard_only_in_the_rounds_of_its_use(
    sizes: list[int], num_nodes: int, block_size: int | None, epoch: int
) -> None:
    num_nodes = min(num_nodes, sum(sizes))
    order = order_of(sizes, num_nodes, block_size, epoch=epoch)
    uses = order.uses()
    used = {
        (node, shard, number)
        for node, shard, first, stop in zip(
            *(array.tolist() for array in vars(uses).values()), strict=True
        )
        for number in range(first, stop)
    }
    shards = np.searchsorted(np.cumsum(sizes), order[:], side="right").tolist()
    full_rounds = sum(sizes) // num_nodes
    for position, shard in enumerate(shards[: full_rounds * num_nodes]):
        assert (position % num_nodes, shard, position // num_nodes) in used


def test_a_draw_is_of_other_samples_in_every_epoch_after_the_full_passes() -> None:
    """Streams of 3 and 4 samples give 8 and 2: two passes and a draw of 2, and a draw of 2."""
    epochs = [
        SeekableOrder(np.array([3, 4]), Shuffle(1, 1, None), epoch, [(1, 8), (1, 2)])[:].tolist()
        for epoch in range(3)
    ]
    assert [samples[:6] for samples in epochs] == [[0, 1, 2] * 2] * 3
    assert [samples[6:] for samples in epochs] == [[0, 1, 3, 4], [1, 2, 6, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("weights", "draw", "sizes"),
    [
        ([(2, 10), (1, 2)], 0, [3, 1, 4, 2, 2]),
        ([(2, 7), (1, 5)], 0, [3, 0, 4, 0, 5, 0]),
        ([(1, 1), (2, 20)], 0, [1, 4, 4, 0, 5, 5, 2]),
        ([(1, 1), (2, 20)], 1, [1, 4, 4, 1, 5, 5, 1]),
        ([(3, 5)], 0, [1, 1, 3]),  # 5 samples of 3, 4 and 5 of 12 are 1¼, 1⅔ and 2 1/12
        ([(3, 5)], 1, [1, 2, 2]),
        ([(3, 5)], 9, [2, 1, 2]),
        ([(3, 5)], 12, [1, 1, 3]),
    ],
    ids=str,
)
def test_a_stream_is_passes_over_its_shards_and_a_share_of_its_rest(
    weights: list[tuple[int, int]], draw: int, sizes: list[int]
) -> None:
    assert weigh(np.array([3, 4, 5]), weights, draw).sizes.tolist() == sizes


def test_the_runs_of_a_shard_are_its_passes_and_then_its_draw() -> None:
    runs = weigh(np.array([3, 4, 5]), [(1, 1), (2, 20)], 0)
    assert runs.shards is not None
    assert runs.is_draw is not None
    assert runs.shards.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert runs.is_draw.tolist() == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("sizes", "bounds", "shards", "offsets", "starts"),
    [
        ([3, 4], [5], [0, 1, 1], [0, 0, 2], [0, 3, 5, 7]),
        ([7], [2, 4], [0, 0, 0], [0, 2, 4], [0, 2, 4, 7]),  # a run of three nodes
        ([3, 4], [], [0, 1], [0, 0], [0, 3, 7]),
    ],
    ids=str,
)
def test_runs_are_cut_at_the_borders_of_nodes(
    sizes: list[int], bounds: list[int], shards: list[int], offsets: list[int], starts: list[int]
) -> None:
    spans = lay_spans(ShardSpans(np.array(sizes)), np.array(bounds, np.int64), None)
    assert spans.shards.tolist() == shards
    assert spans.offsets.tolist() == offsets
    assert spans.starts.tolist() == starts
    assert spans.is_draw is None


def test_the_parts_of_a_draw_are_draws() -> None:
    runs = ShardSpans(np.array([3, 4, 2]), np.array([0, 0, 1]), np.array([False, True, False]))
    spans = lay_spans(runs, np.array([2, 5]), None)
    assert spans.shards.tolist() == [0, 0, 0, 0, 1]
    assert spans.offsets.tolist() == [0, 2, 0, 2, 0]
    assert spans.starts.tolist() == [0, 2, 3, 5, 7, 9]
    assert spans.is_draw is not None
    assert spans.is_draw.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("epoch", range(3))
def test_runs_are_permuted_before_they_are_cut_and_each_nodes_spans_after(epoch: int) -> None:
    keys = np.array([5], np.uint64), np.array([epoch, 7 + epoch], np.uint64)
    spans = lay_spans(ShardSpans(np.array([3, 4, 5, 6])), np.array([9]), keys)
    sizes = np.diff(spans.starts)
    read = np.stack([spans.shards, spans.offsets, sizes], axis=1)[sizes > 0].tolist()
    assert sorted(read[:2]) == [[0, 0, 3], [3, 0, 6]]
    assert sorted(read[2:]) == [[1, 0, 4], [2, 0, 5]]


CONFIG = OrderConfig(True, "seekable", 20, 4, 1)


SHARDS = np.array([7, 30, 1, 0, 12, 25, 9, 18])


@pytest.mark.parametrize("sampling", [None, Sampling((3, 5), (57, 60))])
def test_the_orders_of_a_run_need_no_file(tmp_path: Path, sampling: Sampling | None) -> None:
    orders = EpochOrders(tmp_path, SHARDS, CONFIG, sampling)
    for epoch in (0, 3):
        whole = canonical_order(SHARDS, CONFIG, epoch, sampling)
        assert np.asarray(orders(epoch)).tolist() == whole.tolist()
        assert positions_of(orders(epoch), 5).tolist() == positions_of(whole, 5).tolist()
    assert not orders.build_in_background(1)
    assert list(tmp_path.iterdir()) == []
