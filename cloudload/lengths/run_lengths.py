"""The lengths of a run's documents, and the positions that follow from them.

    recipe, lengths of its datasets ─► a walker for each component ─► position at any later row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cloudload.arrays import Ints
from cloudload.lengths.advance import Walker
from cloudload.lengths.files import LENGTHS_FOLDER, DatasetLengths
from cloudload.lengths.sizes import LaneSizes
from cloudload.lengths.tables import LaneTables
from cloudload.order.mixture_counts import count_rows
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import Recipe


class RunLengths:
    """The lengths of a run. `root` is the cache folder; `datasets` has one entry per stream.

    `digest` identifies the lengths.
    """

    def __init__(
        self, recipe: Recipe, root: Path, datasets: Sequence[DatasetLengths], digest: str
    ) -> None:
        self._recipe, self._root, self._datasets, self._digest = recipe, root, datasets, digest

    def of(self, samples: Ints) -> Ints:
        """The lengths of samples of the corpus, with `FILTERED`: int64, shaped as `samples`."""
        corpus = self._recipe.corpus
        if len(self._datasets) == 1:
            return self._datasets[0].of(samples)
        streams = corpus.streams_of(samples)
        lengths = np.empty_like(samples)
        for stream in np.unique(streams).tolist():
            own = streams == stream
            within = samples[own] - corpus.stream_starts[stream]
            lengths[own] = self._datasets[stream].of(within)
        return lengths

    @cached_property
    def _walkers(self) -> list[Walker]:
        return [self._open_walker(component) for component in self._recipe.components]

    def _open_walker(self, component: Component) -> Walker:
        recipe = self._recipe
        frames = recipe.tokenizer.frames
        sizes = LaneSizes(
            component,
            component.orders(self._root),
            self.of,
            recipe.corpus.streams_of,
            np.array([sum(token is not None for token in frame) for frame in frames], np.int64),
            recipe.config.min_tokens,
        )
        tables = LaneTables(self._root / LENGTHS_FOLDER, sizes, recipe.packing, self._digest)
        return Walker(tables, sizes, recipe.packing)

    @property
    def can_advance(self) -> bool:
        """Whether positions follow from lengths alone, as with `concat` and `one_per_row`."""
        return not self._recipe.packing.has_residue

    def advance(self, position: Position, row: int) -> Position | None:
        """The position at a later row, as reading up to it would give.

        None if a lane ends before that row, because the tail of a finite run has other rows. Raises
        `CacheError` if an order or a table cannot be built, and `ValueError` if a cursor does not
        match the lengths.
        """
        recipe = self._recipe
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
