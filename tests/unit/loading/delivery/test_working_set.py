"""The working set of lanes is the peak of shard bytes that some lane still reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.loading.delivery.working_set import RunWorkingSet, measure_run
from cloudload.run.lengths.row_finder import RowFinder
from testkit.tiny_runs import SHARD_BYTES, TinyRun, name_documents


def measure(run: TinyRun, *lanes: int, last_epoch: int = 0) -> RunWorkingSet:
    return measure_run(run.lengths, run.start, np.array(lanes, np.int64), last_epoch)


def walk(run: TinyRun, num_rows: int, last_epoch: int) -> int:
    """The peak of shard bytes in use, found by listing the shards of every row of both lanes."""
    sizes = run.lengths.sizes[0]
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    pieces = RowFinder(run.lengths, run.start).find(np.arange(2 * num_rows))
    for row, lane, ordinal, *_ in name_documents(pieces).tolist():
        epoch, _ = sizes.component.lanes.epoch_position(lane, ordinal)
        sample = int(sizes.measure(np.array(lane), np.array(ordinal)).samples)
        shard = (int(run.recipe.corpus.shards_of(np.array(sample))), epoch)
        if epoch <= last_epoch:
            first[shard] = min(first.get(shard, row // 2), row // 2)
            last[shard] = max(last.get(shard, -1), row // 2)
    in_use = [
        len({shard for shard, epoch in first if first[shard, epoch] <= row <= last[shard, epoch]})
        for row in range(num_rows)
    ]
    return max(in_use) * SHARD_BYTES


def test_lanes_of_equal_documents_share_each_shard_until_they_leave_it() -> None:
    """4 shards of 4 documents of a row each: a shard lasts 2 rows of both lanes."""
    run = TinyRun([5] * 16, shards=4)
    assert measure(run, 0, 1) == RunWorkingSet(SHARD_BYTES, 0, 0)


def test_a_lane_of_short_documents_runs_ahead_and_keeps_more_shards_in_use() -> None:
    """In row 1, lane 0 ends in shard 4, lane 1 is in shard 0, and has shards 1 to 3 before it."""
    run = TinyRun([1, 5] * 10, shards=5)
    assert measure(run, 0).bytes == 3 * SHARD_BYTES  # its first row reads 3 shards
    assert measure(run, 1).bytes == SHARD_BYTES
    assert measure(run, 0, 1) == RunWorkingSet(5 * SHARD_BYTES, row=2, last_epoch=0)


def test_without_lanes_nothing_is_in_use() -> None:
    assert measure(TinyRun([5] * 16, shards=4)) == RunWorkingSet(0, 0, 0)


def test_a_shard_that_the_next_epoch_begins_with_counts_once() -> None:
    run = TinyRun([3] * 4, shards=2, num_lanes=1)
    assert measure(run, 0, last_epoch=2).bytes == 2 * SHARD_BYTES


def test_the_row_of_the_peak_is_a_row_of_the_run_after_the_position() -> None:
    run = TinyRun([5] * 8 + [1] * 8, shards=8)
    position = run.lengths.advance(run.start, 4)
    assert position is not None
    found = measure_run(run.lengths, position, np.array([0, 1]), 0)
    assert found.bytes == 4 * SHARD_BYTES
    assert found.row == 4 + 2 * 2


def test_components_of_a_mixture_add_up_and_have_no_common_row() -> None:
    run = TinyRun([5] * 4, [5] * 4, proportions=[1, 1], shards=2)
    assert measure(run, 0, 1) == RunWorkingSet(2 * SHARD_BYTES, None, 0)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=8, max_size=16).filter(
        lambda lengths: len(lengths) % 2 == 0
    ),
    options=st.sampled_from(
        [{"packing": "concat"}, {"packing": "one_per_row", "overflow": "rows"}]
    ),
)
def test_the_peak_is_that_of_a_walk_over_all_rows(
    lengths: list[int], options: dict[str, Any]
) -> None:
    run = TinyRun(lengths, shards=4, **options)
    assert measure(run, 0, 1, last_epoch=1).bytes == walk(run, 40, 1)
