"""A position holds the lanes as of a row, and records batches without copying the lanes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cloudload.order.lanes import Lanes
from cloudload.run.position import (
    DATA_START,
    LaneArrays,
    LaneLog,
    Origin,
    Position,
    join_ranges,
)
from testkit.tiny_runs import tiny_recipe


def arrays(*ordinals: int, has_residues: bool = False) -> LaneArrays:
    """Arrays of one component whose lanes are at these ordinals."""
    blank = LaneArrays.blank((1, len(ordinals)), 1, has_residues=has_residues)
    blank.cursors[0, :, 0] = ordinals
    return blank


class Steps:
    """Updates add to lane 0's ordinal. Notes the updates of each call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def apply(self, into: LaneArrays, updates: Sequence[Any]) -> None:
        self.calls.append(list(updates))
        for update in updates:
            into.cursors[0, 0, 0] = 10 * into.cursors[0, 0, 0] + update


def test_updates_are_applied_in_order_and_once_when_the_arrays_are_read() -> None:
    steps, log = Steps(), LaneLog(arrays(1))
    for update in (2, 3, 4):
        log = log.with_update(update, steps.apply)
    assert steps.calls == []
    assert log.arrays.cursors[0, 0, 0] == 1234
    assert log.arrays is log.arrays
    assert steps.calls == [[2, 3, 4]]


def test_an_update_leaves_the_log_before_it_as_it_was() -> None:
    steps, before = Steps(), LaneLog(arrays(1))
    one, other = before.with_update(2, steps.apply), before.with_update(7, steps.apply)
    assert one.arrays.cursors[0, 0, 0] == 12
    assert other.arrays.cursors[0, 0, 0] == 17
    assert before.arrays.cursors[0, 0, 0] == 1


def test_a_log_continues_from_arrays_that_were_read() -> None:
    steps, log = Steps(), LaneLog(arrays(1))
    middle = log.with_update(2, steps.apply)
    _ = middle.arrays
    assert middle.with_update(3, steps.apply).arrays.cursors[0, 0, 0] == 123
    assert steps.calls == [[2], [3]]


def test_after_64_updates_that_were_not_read_the_next_one_applies_them() -> None:
    steps, log = Steps(), LaneLog(arrays(0))
    for _ in range(64):
        log = log.with_update(0, steps.apply)
    assert steps.calls == []
    log = log.with_update(0, steps.apply)
    assert list(map(len, steps.calls)) == [65]
    _ = log.arrays
    assert list(map(len, steps.calls)) == [65]


def test_a_log_that_is_computed_by_a_function_calls_it_once() -> None:
    calls = []

    def compute() -> LaneArrays:
        calls.append(1)
        return arrays(5)

    log = LaneLog.of(compute, LaneLog(arrays(0)).texts)
    assert calls == []
    assert log.arrays is log.arrays
    assert calls == [1]


def test_logs_share_the_texts_of_the_log_that_they_continue() -> None:
    log = LaneLog(arrays(1))
    assert log.with_update(2, Steps().apply).texts is log.texts


def test_a_pickled_log_has_its_updates_applied() -> None:
    log = LaneLog(arrays(1)).with_update(2, Steps().apply)
    assert pickle.loads(pickle.dumps(log)).arrays.cursors[0, 0, 0] == 12


def test_blank_lanes_have_read_nothing() -> None:
    blank = LaneArrays.blank((2, 3), 4, has_residues=True)
    assert blank.cursors.shape == (2, 3, 3)
    assert not blank.cursors.any()
    assert blank.residues is not None
    assert blank.residues.tolist() == [[b""] * 3] * 2
    assert blank.counts.shape == (4, 8)
    assert not blank.counts.any()
    assert LaneArrays.blank((1, 2), 1, has_residues=False).residues is None


def test_a_copy_shares_nothing_that_can_change() -> None:
    first = arrays(1, 2, has_residues=True)
    second = first.copy()
    second.cursors[0, 0, 0], second.counts[0, 0] = 9, 9
    assert second.residues is not None
    second.residues[0, 0] = b"x"
    assert first.cursors[0, 0, 0] == 1
    assert first.counts[0, 0] == 0
    assert first.residues is not None
    assert first.residues[0, 0] == b""


@pytest.mark.parametrize(
    ("batches", "rows", "global_batch", "asked", "steps"),
    [
        (3, 12, 4, [0, 3, 4, 7, 8, 11], [1, 1, 2, 2, 3, 3]),
        (1, 4, 4, [0, 3], [1, 1]),
        (5, 12, 4, [0, 11], [3, 5]),  # the first batches were smaller
        (0, 0, 0, [], []),
    ],
)
def test_the_step_of_a_row_counts_back_from_the_last_batch(
    batches: int, rows: int, global_batch: int, asked: list[int], steps: list[int]
) -> None:
    position = Position(rows, rows, LaneLog(arrays(0)), batches=batches, global_batch=global_batch)
    assert position.steps_of(np.array(asked, np.int64)).tolist() == steps


@pytest.mark.parametrize(
    ("ranges", "new", "joined"),
    [
        ((), (2, 5), ((2, 5),)),
        (((2, 5),), (5, 7), ((2, 7),)),
        (((2, 5),), (6, 7), ((2, 5), (6, 7))),
        (((0, 1), (2, 5)), (5, 6), ((0, 1), (2, 6))),
    ],
)
def test_a_range_of_skipped_rows_joins_the_one_that_it_continues(
    ranges: tuple[tuple[int, int], ...], new: tuple[int, int], joined: tuple[tuple[int, int], ...]
) -> None:
    assert join_ranges(ranges, new) == joined


def test_a_run_starts_at_the_first_document_of_every_lane() -> None:
    start = Position.start(tiny_recipe([3, 4], [5], proportions=[1, 1], packing="best_fit"))
    assert start.cursors.shape == (2, 2, 3)
    assert not start.cursors.any()
    assert start.residues is not None
    assert start.residues.shape == (2, 2)
    assert start.counts.shape == (2, 8)
    assert (start.rows, start.table_rows, start.origin) == (0, 0, DATA_START)
    assert not start.is_in_tail
    assert start.residue(1, 0) == b""


def test_a_run_can_start_after_documents_of_a_later_epoch() -> None:
    """5 documents on 2 lanes: an epoch has 6 positions, and 3 of epoch 1 are read."""
    start = Position.start(tiny_recipe([5]), Origin(1, 3))
    assert start.cursors[0, :, 0].tolist() == [5, 4]


def test_an_origin_counts_whole_epochs_of_documents_not_of_positions() -> None:
    lanes = Lanes(2, 5, None)
    assert Origin(2, 3).count_documents(lanes) == 13
    assert Origin(1, 3).first_ordinal(lanes) == 4
    assert DATA_START.first_ordinal(lanes) == 0


def test_the_stages_of_a_component_are_empty_unless_a_tail_began() -> None:
    plain = Position(0, 0, LaneLog(arrays(0)))
    assert plain.stages_of(0) == ()
    tails = plain.with_lanes(tails=((), ((5, 2),)))
    assert tails.stages_of(0) == ()
    assert tails.stages_of(1) == ((5, 2),)
    assert plain.stages_of(1) == ()


def test_a_position_is_in_the_tail_once_all_lanes_have_ended() -> None:
    plain = Position(9, 9, LaneLog(arrays(0)))
    assert not plain.with_lanes(tails=((), ((5, 2),))).is_in_tail
    assert plain.with_lanes(tails=(((5, 1),), ((5, 2),))).is_in_tail


def test_the_lanes_of_a_corpus_in_its_tail_are_of_the_row_where_they_ended() -> None:
    plain = Position(9, 9, LaneLog(arrays(0)))
    assert plain.lanes_row == 9
    assert plain.with_lanes(tails=(((5, 1), (7, 2)),)).lanes_row == 6
    assert plain.with_lanes(tails=((), ((5, 2),))).lanes_row == 9


def test_new_arrays_of_a_position_replace_only_what_is_named() -> None:
    plain = Position(7, 5, LaneLog(arrays(1, 2)))
    moved = plain.with_lanes(cursors=arrays(3, 4).cursors)
    assert moved.cursors[0, :, 0].tolist() == [3, 4]
    assert moved.counts is plain.counts
    assert (moved.rows, moved.table_rows) == (7, 5)
    assert plain.cursors[0, :, 0].tolist() == [1, 2]
