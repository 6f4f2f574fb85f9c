"""Compute the positions of a run from the lengths of its documents.

recipe, lengths of its datasets ─► a walker for each component ─► position at any later row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data import cache_folder
from cloudload.order import mixture_counts
from cloudload.rows import Stages, Tail, next_stages, tables
from cloudload.run.components import Component, build_components
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.ending import (
    Ending,
    MixtureEnding,
    MixtureTails,
    TailCounts,
    advance_mixture,
    first_dry_row,
)
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.lengths.length_files import CorpusLengths
from cloudload.run.lengths.mixture_search import find_mixture_ending
from cloudload.run.lengths.sizes import LaneSizes
from cloudload.run.position import LaneArrays, LaneLog, Origin, Position
from cloudload.run.recipe import Recipe, mixture_of
from cloudload.run.run_tail import check_has_tokens, pack_run_tail
from cloudload.stats import PADDING
from cloudload.system import NEVER

# summing the lengths of this many documents takes about two seconds
_MOST_FORESEEN = 1 << 24
# playing this many documents, with best_fit, also takes about two seconds
_MOST_PLAYED = 1 << 20


class RunLengths:
    """Computes positions of a run from its lengths.

    `root` is the cache folder, which stores orders and tables. Other threads and signal handlers
    may call every method at any time, and an exception may end it anywhere, because each attribute
    is set only once its value is complete. A pickle has no such values.
    """

    def __init__(self, recipe: Recipe, root: Path, lengths: CorpusLengths) -> None:
        self._asked, self._root, self._lengths = recipe, root, lengths
        self._ending: Ending | None = None
        self._played_rows: dict[Origin, int] = {}
        """The number of rows in the whole run, with `best_fit`, by the run's starting point."""
        self._packed: tuple[Ending, Tail, TailCounts] | None = None
        self._settled: tuple[Recipe, MixtureTails] | None = None
        """The recipe with the ends of the mixture's streams, and their tails."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RunLengths, (self._asked, self._root, self._lengths)

    @property
    def recipe(self) -> Recipe:
        """The recipe. Once the ends of a mixture's streams are known, it includes them."""
        return self._asked if self._settled is None else self._settled[0]

    @cached_property
    def sizes(self) -> list[LaneSizes]:
        """The sizes of the documents of each component."""
        return [self._open_sizes(component) for component in self.recipe.components]

    @cached_property
    def _tables(self) -> list[LaneTables]:
        root, packing = self._root / cache_folder.LENGTHS_FOLDER, self.recipe.packing
        return [LaneTables(root, sizes, packing, self._lengths.digest) for sizes in self.sizes]

    @cached_property
    def walkers(self) -> list[LaneWalker]:
        """The walker of each component, which computes cursors of its lanes at later rows."""
        open_walker = BestFitWalker if self.recipe.packing.has_residue else LaneWalker
        return [
            open_walker(lane_tables, sizes, self.recipe.packing)
            for lane_tables, sizes in zip(self._tables, self.sizes, strict=True)
        ]

    def build_table(self, component: int, epoch: int) -> None:
        """Start building an epoch's table in the background.

        Does nothing if the table exists or is cheap to build.
        """
        if not self.recipe.packing.has_residue:
            self._tables[component].build_in_background(epoch)

    @property
    def units_of_row(self) -> int:
        """The number of units per row."""
        return self.recipe.packing.row_units

    def cut_spans(self, units: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row, start, stop) for each row that contains tokens [start, stop) of a document.

        `units` is the number of units before the document in its lane, and `size` is the number of
        its tokens that are left. Rows are indices within the rows of the lane.

        Example: with concat, seq_len 5, 4 units before the document, and 7 tokens, row 0 contains
        token 0, row 1 contains tokens 1 to 5, and row 2 contains token 6.
        """
        packing = self.recipe.packing
        into = units % packing.seq_len if packing.name == "concat" else 0
        row = units // self.units_of_row
        start, size = 0, min(size, packing.seq_len) if packing.cuts else size
        while start < size:
            stop = min(size, start + packing.seq_len - into)
            yield row, start, stop
            row, start, into = row + 1, stop, 0

    def _open_sizes(self, component: Component) -> LaneSizes:
        recipe = self.recipe
        frames = recipe.tokenizer.frames
        return LaneSizes(
            component,
            component.orders(self._root),
            self._lengths.of,
            self._lengths.streams_of,
            np.array([sum(token is not None for token in frame) for frame in frames], np.int64),
            recipe.config.min_tokens,
        )

    def advance(self, position: Position, row: int, *, pads: bool = False) -> Position | None:
        """The position at a later row. Reading all rows before it would reach the same position.

        Returns None if lengths alone do not determine the position: if a lane of an endless run has
        no tokens, or if the row is beyond the end of a finite run. With `pads`, rows of padding
        follow the end, so the position after it is known. Raises `CacheError` if an order or a
        table cannot be built, `StreamChangedError` if a cursor or a residue does not match the
        lengths, and `DatasetError` if a finite run has no tokens.
        """
        if self.recipe.has_stream_ends:
            return self._advance_mixture(position, row, pads=pads)
        if position.is_in_tail:
            return self._advance_in_tail(position, row, pads=pads)
        if position.table_rows <= row and (found := self._advance_lanes(position, row)) is not None:
            return found
        if self.recipe.config.epochs is None:
            return None
        return self._advance_in_tail(position, row, pads=pads)

    def _advance_lanes(self, position: Position, row: int) -> Position | None:
        """The position at a row that is not in the tail; None if a lane ends before it."""
        recipe = self.recipe
        rows = mixture_counts.count_rows(recipe.mixture, recipe.num_lanes, position.table_rows, row)
        cursors, counts = position.cursors.copy(), position.counts.copy()
        residues = None if position.residues is None else position.residues.copy()
        for index, (walker, component) in enumerate(
            zip(self.walkers, recipe.components, strict=True)
        ):
            left = None if residues is None else residues[index]
            advanced = walker.advance(cursors[index], rows[index], left)
            if advanced.is_dry.any():
                return None
            cursors[index] = advanced.cursors
            if residues is not None:
                residues[index] = advanced.residues
            streams = component.streams
            counts[streams.start : streams.stop] += advanced.counts
        lanes = LaneLog(LaneArrays(cursors, residues, counts))
        return replace(position, rows=row, table_rows=row, lanes=lanes)

    def settle(self, position: Position) -> Recipe:
        """Return the recipe. If streams of the mixture end, it includes their ends, which are found
        from `position`.

        Raises the errors of `find_mixture_ending`.
        """
        if self.recipe.has_stream_ends:
            self.find_tails(position)
        return self.recipe

    def find_tails(self, position: Position) -> MixtureTails:
        """The tails of the mixture's streams.

        They are found once, from the position of the first call. Raises the errors of
        `find_mixture_ending`.
        """
        if self._settled is not None:
            return self._settled[1]
        return self.use_ending(find_mixture_ending(self._asked, self.walkers, position))

    def use_ending(self, ending: MixtureEnding) -> MixtureTails:
        """Use an ending that is already known, and return its tails."""
        recipe = replace(self._asked, mixture=ending.mixture)
        tails = MixtureTails(recipe, self.walkers, ending)
        self._settled = recipe, tails
        return tails

    def _advance_mixture(self, position: Position, row: int, *, pads: bool) -> Position | None:
        """Like `advance`, for a mixture with streams that end."""
        if row == position.rows:
            return position  # a new stage starts only when the next row is made
        tails = self.find_tails(position)
        end = tails.ending.end
        if row > end and not pads:
            return None
        arrays = advance_mixture(self.recipe, self.walkers, tails, position, min(row, end))
        if arrays is None:
            return None
        # as in a finite run of one corpus, the first stream counts the padding after the end
        padded = row - max(position.rows, min(row, end))
        arrays.counts[0, PADDING] += padded * self.recipe.packing.seq_len
        return replace(position, rows=row, table_rows=row, lanes=LaneLog(arrays))

    def _advance_in_tail(self, position: Position, row: int, *, pads: bool) -> Position | None:
        ending = self.find_ending(position)
        if row > ending.end and not pads:
            return None
        _, counted = self._tail_counts(ending)
        counts = ending.lanes.counts + counted.before(row) - counted.before(ending.counted)
        stages = next_stages(ending.stages, self.recipe.config.seq_len, ending.start, row)
        lanes = LaneLog(replace(ending.lanes, counts=counts, tails=(stages,)))
        return replace(position, rows=row, table_rows=row, lanes=lanes)

    def count_rows(self, position: Position) -> int | None:
        """The number of rows from a position to the end of a finite run, including its tail.

        With `best_fit`, the position must be the start of the run. Returns None if lengths alone do
        not determine the number, as in the tail. Raises `CacheError` if an order or a table cannot
        be built.
        """
        packing = self.recipe.packing
        if self.recipe.has_stream_ends:
            end = self.find_tails(position).ending.end
            return None if end == NEVER else end - position.rows
        if position.is_in_tail or len(self.walkers) > 1:
            return None
        if packing.has_residue:
            return self._count_played_rows(position)
        units = int(self.walkers[0].count_units(position.cursors[0]).sum())
        return -(-units // packing.seq_len) if packing.name == "concat" else units

    def _count_played_rows(self, start: Position) -> int:
        end = self._played_rows.get(start.origin)
        if end is None:
            end = self._played_rows[start.origin] = self._find_ending(start).end
        return end - start.table_rows

    def count_rows_of_epochs(self, epochs: int) -> int | None:
        """Return the number of rows in a run of `epochs` epochs, with the recipe's `seq_len`.

        Returns None if lengths alone do not determine the number. Raises the errors of
        `count_rows`.
        """
        recipe = self.recipe
        config = replace(recipe.config, epochs=epochs)
        components = build_components(config, recipe.components, recipe.layout)
        mixture = mixture_of(config)
        finite = replace(
            recipe,
            config=config,
            components=components,
            mixture=mixture,
            fair_from=recipe.fair_from and 0,  # the rule of this run, from the start of the data
        )
        run = RunLengths(finite, self._root, self._lengths)
        return run.count_rows(Position.start(finite))

    def can_foresee(self, position: Position, *, is_needed: bool) -> bool:
        """Whether to compute the end of a finite run from lengths in advance.

        True if this takes only seconds, if it `is_needed`, or in the tail. All ranks at a position
        get the same answer.
        """
        if position.is_in_tail or is_needed:
            return True
        [component] = self.recipe.components
        lanes, first = component.lanes, int(position.cursors[0, :, tables.CURSOR_ORDINAL].min())
        epochs = (lanes.epochs or 0) - first * lanes.num_lanes // lanes.stride
        most = _MOST_PLAYED if self.recipe.packing.has_residue else _MOST_FORESEEN
        return epochs * lanes.num_positions <= most

    def find_ending(self, position: Position) -> Ending:
        """The end of the finite run that a position belongs to.

        A `RunLengths` has one ending, because it belongs to one run. Raises the errors of
        `advance`.
        """
        ending = self._ending
        if ending is None:
            find = self._find_ending_in_tail if position.is_in_tail else self._find_ending
            ending = self._ending = find(position)
        return ending

    def _find_ending(self, position: Position) -> Ending:
        first, units_of_row = position.table_rows, self.units_of_row
        if self.recipe.packing.has_residue:
            return self._find_played_ending(position)
        units = self.walkers[0].count_units(position.cursors[0])
        start = first_dry_row(units // units_of_row, first)
        left = int(units.sum()) - (start - first) * units_of_row
        end = start + -(-left // units_of_row)
        check_has_tokens(self.recipe, end)
        ended = self._advance_lanes(position, start)
        assert ended is not None
        return Ending(start, end, ended.lanes.arrays, start, ())

    def _find_played_ending(self, position: Position) -> Ending:
        [walker] = self.walkers
        assert isinstance(walker, BestFitWalker)
        assert position.residues is not None
        rows = walker.count_rows(position.cursors[0], position.residues[0])
        start = first_dry_row(rows, position.table_rows)
        ended = self._advance_lanes(position, start)
        assert ended is not None
        tail = self.pack_rest(start, ended.lanes.arrays, ())
        return Ending(start, tail.end, ended.lanes.arrays, start, ())

    def _find_ending_in_tail(self, position: Position) -> Ending:
        """Find the end of a run from a position in its tail."""
        start, arrays, stages = position.lanes_row, position.lanes.arrays, position.stages_of(0)
        tail = self.pack_rest(start, arrays, stages)
        return Ending(start, tail.end, arrays, position.rows, stages)

    def pack_rest(self, start: int, ended: LaneArrays, stages: Stages) -> Tail:
        """Pack the tail of a run whose lanes ended at row `start`.

        `ended` has the lanes' cursors and residues at that row, and `stages` are the tail's stages
        so far. Raises the errors of `pack_run_tail`.
        """
        sizes = self.walkers[0].measure_rest(ended.cursors[0])
        return pack_run_tail(self.recipe, start=start, stages=stages, ended=ended, sizes=sizes)

    def pack_tail(self, ending: Ending) -> Tail:
        """Return the tail of an ending, which the first call packs. Raises the errors of
        `pack_run_tail`."""
        return self._tail_counts(ending)[0]

    def _tail_counts(self, ending: Ending) -> tuple[Tail, TailCounts]:
        packed = self._packed
        if packed is None or packed[0] is not ending:
            tail = self.pack_rest(ending.start, ending.lanes, ending.stages)
            lanes, ordinals = tail.remnants[:, [tables.REMNANT_LANE, tables.REMNANT_ORDINAL]].T
            streams = self.walkers[0].streams_of(lanes, ordinals)
            packed = self._packed = ending, tail, TailCounts(self.recipe, tail, streams)
        return packed[1:]
