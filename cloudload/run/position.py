"""The position of a run: the number of rows delivered, and the cursor of each lane.

    batch        1             2             3
    LaneLog ─► with_update ─► with_update ─► with_update ─► .arrays
                                                            copies once, applies all three

Recording a batch stores only a reference to its update. The arrays are copied and updated when they
are read, or when more than `_MOST_PENDING` updates have accumulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cloudload.order import Lanes
from cloudload.rows import Stages, tables
from cloudload.run.lane_texts import LaneTexts
from cloudload.run.recipe import Recipe
from cloudload.stats import COUNTS
from cloudload.system import Ints

Residues = np.ndarray[Any, np.dtype[np.object_]]
MOST_ROWS = 1 << 48
"""The highest row to seek: beyond any real run, but small enough for arithmetic with 64 bits. A
state may have twice as many rows, so that a run can continue from there."""


@dataclass(frozen=True)
class LaneArrays:
    """The cursor and residue of each lane, and the statistics so far."""

    cursors: Ints
    """int64 [components, lanes, 3]: (ordinal, offset, size) of each lane's next unread token.
    `rows.packing.tables` names the columns."""
    residues: Residues | None
    """Object array of bytes, [components, lanes]: the encoded spans that each lane has read but not
    emitted. None if the packing has no residue."""
    counts: Ints
    """int64 [streams, counts], with columns `stats.COUNTS`."""
    tails: tuple[Stages, ...] = ()
    """The stages of each component's tail so far. They are empty for a component that is not in its
    tail, and `tails` is empty if no component is. In its tail, the cursors and residues of a
    component stay where its lanes ended."""

    @staticmethod
    def blank(shape: tuple[int, ...], num_streams: int, *, has_residues: bool) -> LaneArrays:
        """Create arrays for lanes that have read nothing. `shape` is (components, lanes)."""
        return LaneArrays(
            np.zeros((*shape, tables.NUM_CURSOR_COLUMNS), np.int64),
            np.full(shape, b"", object) if has_residues else None,
            np.zeros((num_streams, len(COUNTS)), np.int64),
        )

    def copy(self) -> LaneArrays:
        """Return a deep copy."""
        residues = None if self.residues is None else self.residues.copy()
        return LaneArrays(self.cursors.copy(), residues, self.counts.copy(), self.tails)


ApplyUpdates = Callable[[LaneArrays, Sequence[Any]], None]
"""Applies updates to arrays, in order and in place."""
_MOST_PENDING = 64


class LaneLog:
    """Lane arrays, or how to compute them on first use: from updates, or by a function."""

    def __init__(self, arrays: LaneArrays) -> None:
        # a single value, so that an exception or another thread never finds half of a change
        self._source: LaneArrays | _Pending | Callable[[], LaneArrays] = arrays
        self.texts = LaneTexts()
        """The encoded lanes of the latest state, shared by all logs that continue this one."""

    @staticmethod
    def of(source: LaneArrays | _Pending | Callable[[], LaneArrays], texts: LaneTexts) -> LaneLog:
        """Create a log that shares `texts` with another log."""
        log = LaneLog.__new__(LaneLog)
        log._source, log.texts = source, texts
        return log

    def __reduce__(self) -> tuple[Any, ...]:
        return LaneLog, (self.arrays,)

    def with_update(self, update: Any, apply: ApplyUpdates) -> LaneLog:
        """Return a log with one more update. All updates of a log must use the same `apply`."""
        source = self._source
        num_updates = source.num_updates if isinstance(source, _Pending) else 0
        log = LaneLog.of(_Pending(self, update, apply, num_updates + 1), self.texts)
        if num_updates == _MOST_PENDING:
            _ = log.arrays
        return log

    @property
    def arrays(self) -> LaneArrays:
        """The arrays after all updates. Callers must not modify them."""
        source = self._source
        if isinstance(source, LaneArrays):
            return source
        arrays = source.compute() if isinstance(source, _Pending) else source()
        self._source = arrays
        return arrays


class _Pending(NamedTuple):
    """An update that is not applied yet."""

    log: LaneLog
    """The log before the update."""
    update: Any
    apply: ApplyUpdates
    num_updates: int
    """The number of updates that are not applied, including those of `log`."""

    def compute(self) -> LaneArrays:
        """Compute the arrays after this update and those before it."""
        log, updates = self.log, [self.update]
        while isinstance(source := log._source, _Pending):
            log = source.log
            updates.append(source.update)
        arrays = log.arrays.copy()
        self.apply(arrays, updates[::-1])
        return arrays


class Origin(NamedTuple):
    """The point in the data where a run started: after `num_read` documents of `epoch`."""

    epoch: int = 0
    num_read: int = 0

    def count_documents(self, lanes: Lanes) -> int:
        """Number of documents before the start of the run."""
        return self.epoch * lanes.num_positions + self.num_read

    def first_ordinal(self, lanes: Lanes) -> int:
        """The least of the lanes' first ordinals, which differ by at most 1."""
        return int(lanes.ordinals_after(*self).min())


DATA_START = Origin()


@dataclass(frozen=True)
class Position:
    """A point in the run: `rows` rows were delivered, and `lanes` are as of row `table_rows`.

    A resume reads rows `table_rows` to `rows` again and drops them. There are none in a tail.
    """

    rows: int
    table_rows: int
    lanes: LaneLog
    skipped: tuple[tuple[int, int], ...] = ()
    """Ranges of rows [start, stop) that were skipped."""
    batches: int = 0
    """Number of global batches delivered or skipped."""
    global_batch: int = 0
    """Number of rows in the last global batch."""
    origin: Origin = DATA_START
    """The point in the data where the run started."""

    @staticmethod
    def start(recipe: Recipe, origin: Origin = DATA_START) -> Position:
        """The position before the first row of a run that starts at `origin`."""
        arrays = LaneArrays.blank(
            (len(recipe.components), recipe.num_lanes),
            len(recipe.labels),
            has_residues=recipe.packing.has_residue,
        )
        for component, cursors in zip(recipe.components, arrays.cursors, strict=True):
            cursors[:, tables.CURSOR_ORDINAL] = component.lanes.ordinals_after(*origin)
        return Position(0, 0, LaneLog(arrays), origin=origin)

    @property
    def cursors(self) -> Ints:
        """int64 [components, lanes, 3]; see `LaneArrays`."""
        return self.lanes.arrays.cursors

    @property
    def residues(self) -> Residues | None:
        """Object array of bytes, [components, lanes]; see `LaneArrays`."""
        return self.lanes.arrays.residues

    @property
    def counts(self) -> Ints:
        """int64 [streams, counts]; see `LaneArrays`."""
        return self.lanes.arrays.counts

    def stages_of(self, component: int) -> Stages:
        """The stages of a component's tail; empty if it is not in its tail. See `LaneArrays`."""
        tails = self.lanes.arrays.tails
        return tails[component] if tails else ()

    @property
    def is_in_tail(self) -> bool:
        """Whether all lanes have ended, so that all later rows are of tails."""
        tails = self.lanes.arrays.tails
        return bool(tails) and all(tails)

    @property
    def lanes_row(self) -> int:
        """The row of the cursors: `table_rows`, or the start of the tail of the only component."""
        tails = self.lanes.arrays.tails
        stages = tails[0] if len(tails) == 1 else ()
        return self.table_rows - sum(rows for _, rows in stages)

    def steps_of(self, rows: Ints) -> Ints:
        """The step, counted from 1, that delivered each of `rows`: int64 [rows].

        The rows must be before this position. All batches since then are assumed to have had the
        size of the last one.
        """
        steps: Ints = self.batches - (self.rows - 1 - rows) // max(1, self.global_batch)
        return steps

    def residue(self, component: int, lane: int) -> bytes:
        """The residue of one lane; empty if the packing has no residue."""
        return b"" if self.residues is None else bytes(self.residues[component, lane])

    def with_lanes(self, **arrays: Any) -> Position:
        """Return a copy of the position with new `cursors`, `residues` or `counts`."""
        return replace(self, lanes=LaneLog(replace(self.lanes.arrays, **arrays)))


def join_ranges(
    ranges: tuple[tuple[int, int], ...], new: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Append the range of rows `new`, or merge it with the last range if they are adjacent."""
    if ranges and ranges[-1][1] == new[0]:
        return (*ranges[:-1], (ranges[-1][0], new[1]))
    return (*ranges, new)
