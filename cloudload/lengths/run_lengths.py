"""The lengths of a run's documents, and the positions that follow from them.

recipe, lengths of its datasets ─► a walker for each component ─► position at any later row
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cloudload.lengths.advance import Walker
from cloudload.lengths.files import LENGTHS_FOLDER, CorpusLengths
from cloudload.lengths.sizes import LaneSizes
from cloudload.lengths.tables import LaneTables
from cloudload.order.mixture_counts import count_rows
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import Recipe


class RunLengths:
    """Positions of a run, from its lengths. `root` is the cache folder, for orders and tables."""

    def __init__(self, recipe: Recipe, root: Path, lengths: CorpusLengths) -> None:
        self.recipe, self._root, self._lengths = recipe, root, lengths

    @cached_property
    def _walkers(self) -> list[Walker]:
        return [self._open_walker(component) for component in self.recipe.components]

    def _open_walker(self, component: Component) -> Walker:
        recipe = self.recipe
        frames = recipe.tokenizer.frames
        sizes = LaneSizes(
            component,
            component.orders(self._root),
            self._lengths.of,
            recipe.corpus.streams_of,
            np.array([sum(token is not None for token in frame) for frame in frames], np.int64),
            recipe.config.min_tokens,
        )
        tables = LaneTables(
            self._root / LENGTHS_FOLDER, sizes, recipe.packing, self._lengths.digest
        )
        return Walker(tables, sizes, recipe.packing)

    def advance(self, position: Position, row: int) -> Position | None:
        """The position at a later row, as reading up to it would give.

        None if it does not follow from lengths alone: with `best_fit`, and in or beyond the tail of
        a finite run. Raises `CacheError` if an order or a table cannot be built, and
        `StreamChangedError` if a cursor does not match the lengths.
        """
        recipe = self.recipe
        if recipe.packing.has_residue or position.tail is not None:
            return None
        rows = count_rows(recipe.mixture, recipe.num_lanes, position.table_rows, row)
        cursors, counts = position.cursors.copy(), position.counts.copy()
        for place, (walker, component) in enumerate(
            zip(self._walkers, recipe.components, strict=True)
        ):
            advanced = walker.advance(cursors[place], rows[place])
            if advanced.is_dry.any():
                return None
            cursors[place] = advanced.cursors
            streams = component.streams
            counts[streams.start : streams.stop] += advanced.counts
        lanes = LaneLog(LaneArrays(cursors, None, counts))
        return replace(position, rows=row, table_rows=row, lanes=lanes)

    def count_rows(self, position: Position) -> int | None:
        """The number of rows from a position to the end of a finite run, its tail included.

        None if it does not follow from lengths alone: with `best_fit`, and in the tail. Raises
        `CacheError` if an order or a table cannot be built.
        """
        packing = self.recipe.packing
        if packing.has_residue or position.tail is not None or len(self._walkers) > 1:
            return None
        units = self._walkers[0].count_units(position.cursors[0])
        return -(-units // packing.seq_len) if packing.name == "concat" else units
