"""Find the rows that contain a document, from token lengths.

    sample ─► its lane and ordinal in each epoch ─► units before it in the lane ─► rows
                                                └─► pieces of the tail

Reading all rows would find the same rows, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cloudload.errors import DatasetError
from cloudload.order import positions_of
from cloudload.rows import Tail, residue_spans, tables
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.lengths.row_finder import BestFitRows
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Position
from cloudload.system import Ints

ROWS_AT_ONCE = 1 << 22


class FoundSpan(NamedTuple):
    """Tokens [start, stop) of a document in a row of the run."""

    row: int
    piece: int
    """The span's index in its row, by which the spans of a row are sorted."""
    epoch: int
    start: int
    stop: int


class _Reading(NamedTuple):
    """One occurrence of the document in a lane: in an epoch, the lane reads it at `ordinal`."""

    epoch: int
    lane: int
    ordinal: int


def find_spans(
    lengths: RunLengths, position: Position, component: int, sample: int, stop_row: int
) -> list[FoundSpan]:
    """Find each span of a sample in the rows from a position to `stop_row`, in order of rows.

    `sample` is an index within the component with index `component`. Raises the errors of
    `RunLengths.advance`, and `DatasetError` if a lane of an endless run has no tokens before
    `stop_row`.
    """
    found = _advance(lengths, position, stop_row)
    tails, stop, end_of_lanes = None, stop_row, stop_row
    if any(found.lanes.arrays.tails):
        tails = lengths.find_tails(position)
        lengths = lengths.end(tails.ending)
        stop = min(stop, tails.ending.end)
        end_of_lanes = min(stop, tails.ending.lane_ends[component])
    lanes = lengths.recipe.components[component].lanes
    if found.stages_of(component):
        last = (lanes.epochs or 0) - 1
    else:
        heads = found.cursors[component][:, tables.CURSOR_ORDINAL]
        last = int(lanes.epoch_positions(np.arange(lanes.num_lanes), heads)[0].max())
    readings = list(_list_readings(lengths, position, component, sample, last))
    if not readings:
        return []
    spans: list[FoundSpan] = []
    if not position.stages_of(component):
        find = _find_in_lanes if position.residues is None else _find_in_played_lanes
        spans += find(lengths, position, component, readings, end_of_lanes)
    if tails is not None and found.stages_of(component):
        first = component * lanes.num_lanes
        flat = [reading._replace(lane=first + reading.lane) for reading in readings]
        rows = range(tails.count_rows(component, position.rows), tails.count_rows(component, stop))
        spans += [
            span._replace(row=tails.row_of(component, span.row))
            for span in _find_pieces(tails.tail(component), flat)
            if span.row in rows
        ]
    return sorted(spans)


def _advance(lengths: RunLengths, position: Position, row: int) -> Position:
    found = lengths.advance(position, row, pads=True)
    if found is None:
        raise DatasetError(
            f"the rows before row {row:,} are unknown, because a lane has no tokens. Set an eos, "
            "or use more documents or a smaller num_lanes"
        )
    return found


def _list_readings(
    lengths: RunLengths, position: Position, component: int, sample: int, last_epoch: int
) -> Iterator[_Reading]:
    """Yield each occurrence of a sample in a lane after the position, up to `last_epoch`."""
    orders, lanes = lengths.sizes[component].orders, lengths.recipe.components[component].lanes
    # lanes begin at a permutation of 0 to num_lanes - 1, and this is its inverse
    lane_at = np.argsort(lanes.first_positions)
    heads, waiting = (
        position.cursors[component, :, tables.CURSOR_ORDINAL],
        _list_waiting(position, component),
    )
    # a document that waits in a residue may be of an earlier epoch than its lane's cursor
    oldest = heads.copy()
    for lane, ordinal in waiting:
        oldest[lane] = min(oldest[lane], ordinal)
    epochs, _ = lanes.epoch_positions(np.arange(lanes.num_lanes), oldest)
    last_epoch = last_epoch if lanes.epochs is None else min(last_epoch, lanes.epochs - 1)
    for epoch in range(int(epochs.min()), last_epoch + 1):
        for within in positions_of(orders(epoch), sample).tolist():
            # lanes take turns at the positions of all epochs
            ordinal, index = divmod(epoch * lanes.stride + within, lanes.num_lanes)
            lane = int(lane_at[index])
            if ordinal >= heads[lane] or (lane, ordinal) in waiting:
                yield _Reading(epoch, lane, ordinal)


def _list_waiting(position: Position, component: int) -> dict[tuple[int, int], int]:
    """The number of tokens of each document in the residues, by (lane, ordinal)."""
    heads = position.cursors[component, :, tables.CURSOR_ORDINAL].tolist()
    return {
        (lane, document): stop - start
        for lane, head in enumerate(heads)
        for document, start, stop in residue_spans(position.residue(component, lane), head)
    }


def _find_in_lanes(
    lengths: RunLengths, position: Position, component: int, readings: list[_Reading], stop: int
) -> Iterator[FoundSpan]:
    """Yield the spans in rows before `stop` that are cut from lanes."""
    lanes, ordinals = np.array([reading[1:] for reading in readings], np.int64).T
    measured = _measure(lengths.walkers[component], position.cursors[component], lanes, ordinals)
    rows = {
        lane: _list_rows(lengths, component, lane, position.table_rows, stop)
        for lane in set(lanes.tolist())
    }
    for reading, start, size, before in zip(
        readings, *(each.tolist() for each in measured), strict=True
    ):
        # the document's units in its lane, cut where the rows of the lane end
        own = rows[reading.lane]
        for row, first, after in lengths.cut_spans(before, size - start):
            if row < len(own):
                # in its first row, the document begins after the units before it
                piece = max(0, before - row * lengths.recipe.packing.row_units)
                yield FoundSpan(int(own[row]), piece, reading.epoch, start + first, start + after)


def _find_in_played_lanes(
    lengths: RunLengths, position: Position, component: int, readings: list[_Reading], stop: int
) -> Iterator[FoundSpan]:
    """Like `_find_in_lanes`, for `best_fit` lanes."""
    walker, cursors = lengths.walkers[component], position.cursors[component]
    assert isinstance(walker, BestFitWalker)
    assert position.residues is not None
    finder = BestFitRows(walker, cursors, position.residues[component])
    waiting = _list_waiting(position, component)
    lanes, ordinals = np.array([reading[1:] for reading in readings], np.int64).T
    starts, sizes = _measure_left(walker, cursors, lanes, ordinals)
    for (epoch, lane, ordinal), left in zip(readings, (sizes - starts).tolist(), strict=True):
        rows = _list_rows(lengths, component, lane, position.table_rows, stop)
        # of a document in the residue, later rows contain only the tokens that wait
        tokens = waiting.get((lane, ordinal), left)
        for found in finder.find_document(lane, ordinal, tokens, len(rows)):
            yield FoundSpan(int(rows[found.row]), found.piece, epoch, found.start, found.stop)


def _measure_left(
    walker: LaneWalker, cursors: Ints, lanes: Ints, ordinals: Ints
) -> tuple[Ints, Ints]:
    """The first unread token of each document, and its size: int64 [documents] each."""
    is_begun = (ordinals == cursors[lanes, tables.CURSOR_ORDINAL]) & (
        cursors[lanes, tables.CURSOR_OFFSET] > 0
    )
    found = walker.sizes.measure(lanes, ordinals)
    starts = np.where(is_begun, cursors[lanes, tables.CURSOR_OFFSET], 0)
    return starts, np.where(is_begun, found.whole, found.tokens)


def _measure(
    walker: LaneWalker, cursors: Ints, lanes: Ints, ordinals: Ints
) -> tuple[Ints, Ints, Ints]:
    """The first unread token of each document, its size, and the units before that token."""
    starts, sizes = _measure_left(walker, cursors, lanes, ordinals)
    is_begun = starts > 0
    # no units are before the rest of a begun document, but the count starts after that document, so
    # ask for the next one, and drop the answer
    before = walker.count_units_before(cursors, lanes, np.where(is_begun, ordinals + 1, ordinals))
    return starts, sizes, np.where(is_begun, 0, before)


def _list_rows(lengths: RunLengths, component: int, lane: int, start: int, stop: int) -> Ints:
    """The rows of the run, in [start, stop), that belong to a component's lane: int64 [rows]."""

    recipe = lengths.recipe
    # row g belongs to lane g % num_lanes of some component, so look at every num_lanes-th row
    first, found = start + (lane - start) % recipe.num_lanes, []
    for begin in range(first, stop, ROWS_AT_ONCE * recipe.num_lanes):
        end = min(stop, begin + ROWS_AT_ONCE * recipe.num_lanes)
        rows = np.arange(begin, end, recipe.num_lanes)
        found.append(rows[recipe.components_of(rows) == component])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _find_pieces(tail: Tail, readings: list[_Reading]) -> Iterator[FoundSpan]:
    """Yield the spans in rows of a tail."""
    epochs, lanes, ordinals = np.array(readings, np.int64).reshape(-1, 3).T
    epoch_of = dict(
        zip(tables.document_keys(lanes, ordinals).tolist(), epochs.tolist(), strict=True)
    )
    keys = tail.keys[tail.pieces[:, tables.PIECE_DOCUMENT]]
    for piece in np.flatnonzero(np.isin(keys, list(epoch_of))).tolist():
        row, _, first, after = tail.pieces[piece].tolist()
        yield FoundSpan(tail.first_row + row, piece, epoch_of[int(keys[piece])], first, after)
