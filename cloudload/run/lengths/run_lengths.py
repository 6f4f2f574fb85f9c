"""Compute the positions of a run from the lengths of its documents.

recipe, lengths of its datasets ─► a walker for each component ─► position at any later row

`RunInputs` is all that a machine reads a run with. It opens the lengths, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudload.data import cache_folder
from cloudload.rows import Choice, tables
from cloudload.run.components import Component, build_components
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.ending import Ending, Tails, advance_lanes
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.lengths.length_files import CorpusLengths
from cloudload.run.lengths.mixture_search import find_ending
from cloudload.run.lengths.sizes import LaneSizes
from cloudload.run.position import LaneLog, Origin, Position
from cloudload.run.recipe import Recipe, mixture_of
from cloudload.stats import PADDING
from cloudload.system import NEVER

# summing the lengths of this many documents takes about two seconds
_MOST_FORESEEN = 1 << 24
# playing this many documents, with best_fit, also takes about two seconds
_MOST_PLAYED = 1 << 20


class RunLengths:
    """Computes positions of a run from its lengths.

    `root` is the cache folder, which stores orders and tables. Other threads and signal handlers
    may call every method at any time, and an exception may end it anywhere, because a question
    changes nothing but caches, each of which is set only once its value is complete. A pickle has
    no caches.
    """

    def __init__(
        self, recipe: Recipe, root: Path, lengths: CorpusLengths, ending: Ending | None = None
    ) -> None:
        self.recipe, self._root, self._lengths = recipe, root, lengths
        self.ending = ending
        """The ends of the run's streams, if they are given. The recipe includes them."""
        self._played_rows: dict[Origin, int] = {}
        """The number of rows in the whole run, with `best_fit`, by the run's starting point."""
        self._tails: Tails | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RunLengths, (self.recipe, self._root, self._lengths, self.ending)

    def end(self, ending: Ending) -> RunLengths:
        """Return the lengths of the same run, whose recipe includes the ends of its streams."""
        recipe = self.recipe
        if ending.mixture != recipe.mixture:
            recipe = replace(recipe, mixture=ending.mixture)
        ended = RunLengths(recipe, self._root, self._lengths, ending)
        # what is open does not depend on where streams end
        opened = ("sizes", "_tables", "walkers")
        vars(ended).update({name: vars(self)[name] for name in opened if name in vars(self)})
        return ended

    def settle(self, position: Position) -> RunLengths:
        """Find where the streams end, from a position, and return the lengths of that run.

        Raises the errors of `find_ending`.
        """
        return self.end(find_ending(self.recipe, self.walkers, position))

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
        return [open_walker(lane_tables) for lane_tables in self._tables]

    def build_table(self, component: int, epoch: int) -> None:
        """Start building an epoch's table in the background.

        Does nothing if the table exists or is cheap to build.
        """
        if not self.recipe.packing.has_residue:
            self._tables[component].build_in_background(epoch)

    def cut_spans(self, units: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row, start, stop) for each row that contains tokens [start, stop) of a document.

        `units` is the number of units before the document in its lane, and `size` is the number of
        its tokens that are left. Rows are indices within the rows of the lane.

        Example: with concat, seq_len 5, 4 units before the document, and 7 tokens, row 0 contains
        token 0, row 1 contains tokens 1 to 5, and row 2 contains token 6.
        """
        packing = self.recipe.packing
        into = units % packing.seq_len if packing.name == "concat" else 0
        row = units // packing.row_units
        start, size = 0, min(size, packing.seq_len) if packing.cuts else size
        while start < size:
            stop = min(size, start + packing.seq_len - into)
            yield row, start, stop
            row, start, into = row + 1, stop, 0

    def _open_sizes(self, component: Component) -> LaneSizes:
        recipe = self.recipe
        return LaneSizes(
            component,
            component.orders(self._root),
            self._lengths.of,
            self._lengths.streams_of,
            recipe.framing,
            recipe.config.min_tokens,
            recipe.config.max_tokens or NEVER,
        )

    def advance(self, position: Position, row: int, *, pads: bool = False) -> Position | None:
        """The position at a later row. Reading all rows before it would reach the same position.

        Returns None if lengths alone do not determine the position: if a lane of an endless run has
        no tokens, or if the row is beyond the end of a finite run. With `pads`, rows of padding
        follow the end, so the position after it is known. Raises `CacheError` if an order or a
        table cannot be built, `StreamChangedError` if a cursor or a residue does not match the
        lengths, and `DatasetError` if a finite run has no tokens.
        """
        is_corpus, has_tails = len(self.walkers) == 1, self.recipe.has_tails
        # the rows before its end do not depend on where it is, except in a mixture
        if not position.is_in_tail and (is_corpus or not has_tails):
            found = self._advance_lanes(position, row) if position.table_rows <= row else None
            if found is not None or not has_tails:
                return found
        if row == position.rows:
            return position  # a new stage starts only when the next row is made
        tails = self.find_tails(position)
        end = tails.ending.end
        if row > end and not pads:
            return None
        stop = row if is_corpus else min(row, end)
        arrays = tails.advance(position, stop)
        if arrays is None:
            return None
        # as in a finite run of one corpus, the first stream counts the padding after the end
        padded = row - max(position.rows, stop)
        arrays.counts[0, PADDING] += padded * self.recipe.packing.seq_len
        return replace(position, rows=row, table_rows=row, lanes=LaneLog(arrays))

    def _advance_lanes(self, position: Position, row: int) -> Position | None:
        """The position at a row that is not in a tail; None if a lane ends before it."""
        stops = [row] * len(self.walkers)
        arrays = advance_lanes(self.recipe, self.walkers, position, stops)
        if arrays is None:
            return None
        return replace(position, rows=row, table_rows=row, lanes=LaneLog(arrays))

    def find_tails(self, position: Position) -> Tails:
        """The tails of the run's streams. If no ending is given, it is found once, from the
        position of the first call.

        Raises the errors of `find_ending`.
        """
        if self._tails is None:
            ended = self if self.ending is not None else self.settle(position)
            assert ended.ending is not None
            self._tails = Tails(ended.recipe, self._root, self.walkers, ended.ending)
        return self._tails

    def count_rows(self, position: Position) -> int | None:
        """The number of rows from a position to the end of a finite run, including its tail.

        With `best_fit`, the position must be the start of the run. Returns None if lengths alone do
        not determine the number, as in the tail. Raises `CacheError` if an order or a table cannot
        be built.
        """
        packing = self.recipe.packing
        if len(self.walkers) > 1:
            end = self.find_tails(position).ending.end
            return None if end == NEVER else end - position.rows
        if position.is_in_tail:
            return None
        if packing.has_residue:
            return self._count_played_rows(position)
        units = int(self.walkers[0].count_units(position.cursors[0]).sum())
        return -(-units // packing.seq_len) if packing.name == "concat" else units

    def _count_played_rows(self, start: Position) -> int:
        end = self._played_rows.get(start.origin)
        if end is None:
            end = find_ending(self.recipe, self.walkers, start).end
            self._played_rows[start.origin] = end
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
        if position.is_in_tail or is_needed or len(self.walkers) > 1:
            return True
        [component] = self.recipe.components
        lanes, first = component.lanes, int(position.cursors[0, :, tables.CURSOR_ORDINAL].min())
        epochs = (lanes.epochs or 0) - first * lanes.num_lanes // lanes.stride
        most = _MOST_PLAYED if self.recipe.packing.has_residue else _MOST_FORESEEN
        return epochs * lanes.num_positions <= most


@dataclass(frozen=True)
class RunInputs:
    """All that the documents of a run are read with, on one machine."""

    recipe: Recipe
    cache_root: Path
    backend: Choice
    """The tokenizer backend that encodes documents."""
    lengths: CorpusLengths | None = None
    """The lengths of the samples. Each document that is read is compared with its length."""

    def open_run_lengths(self) -> RunLengths:
        """Open the lengths of the run, which must have lengths."""
        assert self.lengths is not None
        return RunLengths(self.recipe, self.cache_root, self.lengths)

    def open_tails(self, ending: Ending) -> Tails:
        """Open the tails of the run's ending."""
        walkers = () if self.lengths is None else self.open_run_lengths().walkers
        return Tails(self.recipe, self.cache_root, walkers, ending)
