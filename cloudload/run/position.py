"""Where a run stands: the rows handed out, and how far each lane has read its documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.packing.tail import Stages
from cloudload.run.recipe import Recipe
from cloudload.stats import COUNTS

Residues = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True)
class LaneArrays:
    """How far each lane has read, and what was counted on the way."""

    cursors: Ints
    """int64 [components, lanes, 2]: (ordinal, offset) of each lane's next unread token; -1 where
    unknown."""
    residues: Residues | None
    """bytes [components, lanes]: what each lane has read and not emitted; None where the packing
    has no such thing."""
    counts: Ints
    """int64 [streams, counts], by `stats.COUNTS`."""


Move = Callable[[LaneArrays, Sequence[Any]], None]
"""Moves arrays on, in place, by several updates in their order."""
_MOST_PENDING = 64


class LaneTable:
    """Lane arrays that are moved on by updates, and worked out when they are asked for: a batch
    costs a reference."""

    def __init__(self, arrays: LaneArrays) -> None:
        self._arrays: LaneArrays | None = arrays
        self._before: LaneTable | None = None
        self._update: Any = None
        self._move: Move | None = None
        self._num_pending = 0

    def after(self, update: Any, move: Move) -> LaneTable:
        """The table after an update; all updates of a run have the same `move`."""
        table = LaneTable.__new__(LaneTable)
        table._arrays, table._before, table._update, table._move = None, self, update, move
        table._num_pending = self._num_pending + 1
        if table._num_pending > _MOST_PENDING:
            _ = table.arrays
        return table

    @property
    def arrays(self) -> LaneArrays:
        """Not to be written to."""
        if self._arrays is None:
            self._arrays = self._moved_arrays()
            self._before, self._update, self._num_pending = None, None, 0
        return self._arrays

    def _moved_arrays(self) -> LaneArrays:
        updates, table = [], self
        while table._arrays is None:
            updates.append(table._update)
            assert table._before is not None
            table = table._before
        known = table._arrays
        residues = None if known.residues is None else known.residues.copy()
        arrays = LaneArrays(known.cursors.copy(), residues, known.counts.copy())
        assert self._move is not None
        self._move(arrays, updates[::-1])
        return arrays


@dataclass(frozen=True)
class Position:
    """`rows` of the run are handed out; `lanes` are as of `table_rows`.

    The rows from `table_rows` to `rows` are read again, and dropped. Not so in a tail: there the
    lanes stand where they ended, and the counts are those of `rows`.
    """

    rows: int
    table_rows: int
    lanes: LaneTable
    tail: Stages | None = None
    """The rows of the tail so far; None before it."""
    skipped: tuple[tuple[int, int], ...] = ()
    """The rows [start, stop) that were passed over."""
    batches: int = 0
    """Global batches handed out."""
    global_batch: int = 0
    """Rows of the last of them."""

    @staticmethod
    def start(recipe: Recipe) -> Position:
        """Before the first row."""
        shape = len(recipe.components), recipe.num_lanes
        residues = np.full(shape, b"", object) if recipe.packing.has_residue else None
        counts = np.zeros((len(recipe.labels), len(COUNTS)), np.int64)
        return Position(
            0, 0, LaneTable(LaneArrays(np.zeros((*shape, 2), np.int64), residues, counts))
        )

    @property
    def cursors(self) -> Ints:
        """int64 [components, lanes, 2], see `LaneArrays`."""
        return self.lanes.arrays.cursors

    @property
    def residues(self) -> Residues | None:
        """bytes [components, lanes], see `LaneArrays`."""
        return self.lanes.arrays.residues

    @property
    def counts(self) -> Ints:
        """int64 [streams, counts], see `LaneArrays`."""
        return self.lanes.arrays.counts

    def with_lanes(self, **arrays: Any) -> Position:
        """The same with other `cursors`, `residues` or `counts`."""
        return replace(self, lanes=LaneTable(replace(self.lanes.arrays, **arrays)))

    def residue(self, component: int, lane: int) -> bytes:
        """What a lane has read and not emitted."""
        return b"" if self.residues is None else bytes(self.residues[component, lane])
