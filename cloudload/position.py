"""Where a run stands: the rows handed out, and how far each lane has read its documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.lanes import Ints
from cloudload.recipe import Recipe
from cloudload.stats import COUNTS
from cloudload.tail import Stages

Residues = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True)
class Position:
    """`rows` of the run are handed out; `cursors` (-1 where unknown), `residues` and `counts` are as of `table_rows`.

    The rows from `table_rows` to `rows` are read again, and dropped. Not so in a tail: there the lanes stand where they ended,
    and the counts are those of `rows`.
    """

    rows: int
    table_rows: int
    cursors: Ints
    """int64 [components, lanes, 2]: (ordinal, offset) of each lane's next unread token."""
    residues: Residues | None
    """bytes [components, lanes]: what each lane has read and not emitted; None where the packing has no such thing."""
    counts: Ints
    """int64 [streams, counts], by `stats.COUNTS`."""
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
        return Position(0, 0, np.zeros((*shape, 2), np.int64), residues, counts)

    def residue(self, component: int, lane: int) -> bytes:
        """What a lane has read and not emitted."""
        return b"" if self.residues is None else bytes(self.residues[component, lane])
