"""Find the rows at which a run's streams end, from token lengths.

    concat, one_per_row    remaining units in the lanes ─► remaining rows ─► ends of the streams
    best_fit               lanes played to their ends ─► the first tail of a stream, packed
                           ─► remaining rows of that stream ─► its end ─► the next tail, …

    weights a 2 · b 1, rows left a 5 · b 1        rows 0 1 2 3 4 5
    stopping="all"                                     a a b a a a      b has weight 0 from row 3 on
    stopping="first"                                   a a b            the run ends with row 2

A stream's number of rows depends only on its tokens, except with `best_fit`. With `best_fit`, it
also depends on the tokens that remain in the lanes at the row where the tail begins. That row
depends on the ends of other streams before it, so tails are packed in the order in which they
begin. A corpus is a mixture of one stream, whose end needs no search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.config import choices
from cloudload.errors import DatasetError
from cloudload.order import Mixture, Weights, merge_entries, mixture_counts
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.ending import (
    Ending,
    arrays_of_stream,
    no_tokens,
    pack_stream_tail,
)
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.position import LaneArrays, Position
from cloudload.run.recipe import Recipe
from cloudload.system import NEVER, Ints


@dataclass(frozen=True)
class StreamEnds:
    """The ends of a mixture's streams, and of the run."""

    mixture: Mixture
    """The mixture, in which the weight of each stream is 0 from its end on."""
    ends: tuple[int, ...]
    """The row at which each stream has ended; `NEVER` if it does not end, or has no weight."""
    end: int
    """The number of rows in the run; `NEVER` if it is endless."""


def find_ending(recipe: Recipe, walkers: Sequence[LaneWalker], position: Position) -> Ending:
    """Find the ends of a run's streams, starting from a position.

    Raises `CacheError` if an order or a table cannot be built, `StreamChangedError` if a cursor or
    a residue does not match the lengths, and `DatasetError` if the run has no rows.
    """
    start = position.table_rows
    lane_ends = (start,) * len(walkers)
    unknown = Ending(recipe.mixture, start, NEVER, (), lane_ends, position.lanes.arrays)
    search = _PlayedSearch if recipe.packing.has_residue else _Search
    return search(recipe, walkers, unknown).find()


class _Search:
    """Finds the ends of streams whose number of rows depends only on their tokens."""

    def __init__(self, recipe: Recipe, walkers: Sequence[LaneWalker], unknown: Ending) -> None:
        self._recipe, self._walkers, self._unknown = recipe, walkers, unknown
        self._lane_rows: list[Ints | None] = []
        """For each stream, the number of rows that each lane can fill, int64 [lanes]; None if the
        stream is endless."""
        self._left: list[int | None] = []
        """The number of rows that remain in each stream; None if it is unknown or infinite."""
        for stream, component in enumerate(recipe.components):
            lane_rows, left = None, None
            if unknown.stages_of(stream):
                lane_rows, left = np.zeros(recipe.num_lanes, np.int64), self._count_in_tail(stream)
            elif component.lanes.epochs is not None:
                lane_rows, left = self._count(stream)
            self._lane_rows.append(lane_rows)
            self._left.append(left)

    def find(self) -> Ending:
        """Find the ends. Raises the errors of `find_ending`."""
        return self._build(self._end_streams(), ())

    def _count_in_tail(self, stream: int) -> int:
        lanes, stages = self._unknown.lanes, self._unknown.stages_of(stream)
        residues = None if lanes.residues is None else lanes.residues[stream]
        ended = arrays_of_stream(lanes.cursors[stream], residues)
        tail = pack_stream_tail(self._recipe, self._walkers[stream], ended, stages)
        # a corpus may have delivered padding, too
        return max(0, tail.end - sum(rows for _, rows in stages))

    def _count(self, stream: int) -> tuple[Ints, int | None]:
        """Count the rows that each lane of a stream can fill, and the stream's remaining rows."""
        row_units = self._recipe.packing.row_units
        units = self._walkers[stream].count_units(self._unknown.lanes.cursors[stream])
        return units // row_units, -(-int(units.sum()) // row_units)

    def _end_streams(self) -> StreamEnds:
        recipe = self._recipe
        return end_streams(
            recipe.mixture,
            recipe.num_lanes,
            self._unknown.start,
            self._left,
            stops_first=recipe.config.stopping == choices.FIRST,
        )

    def _walk(self, mixture: Mixture, stream: int) -> mixture_counts.MixtureCounter:
        return mixture_counts.MixtureCounter(mixture, self._recipe.num_lanes, stream)

    def _find_lane_end(self, ends: StreamEnds, stream: int) -> int:
        """Find the first row of a stream's tail."""
        last, lane_rows = min(ends.ends[stream], ends.end), self._lane_rows[stream]
        if lane_rows is None:
            return NEVER
        walk = self._walk(ends.mixture, stream)
        return find_first_dry(walk, self._unknown.start, last, lane_rows)

    def _build(self, ends: StreamEnds, ended: tuple[LaneArrays | None, ...]) -> Ending:
        if not ends.end:
            raise _no_rows(self._recipe, ends)
        lane_ends = [self._find_lane_end(ends, stream) for stream in range(len(ends.ends))]
        return replace(
            self._unknown,
            mixture=ends.mixture,
            end=ends.end,
            stream_ends=ends.ends,
            lane_ends=tuple(lane_ends),
            ended=ended,
        )


class _PlayedSearch(_Search):
    """Finds the ends of streams that `best_fit` packs.

    A stream is treated as endless until its number of rows is known.
    """

    def __init__(self, recipe: Recipe, walkers: Sequence[LaneWalker], unknown: Ending) -> None:
        self._is_full: dict[int, bool] = {}
        """Whether a stream's lanes fill whole rows, so that no tokens remain for a tail."""
        super().__init__(recipe, walkers, unknown)
        self._ended: list[LaneArrays | None] = [None] * len(walkers)
        self._begins: dict[int, int] = {}
        """The row at which each stream's tail begins, if it is known."""

    def find(self) -> Ending:
        ends = self._end_streams()
        while (first := self._find_first_tail(ends)) is not None:
            self._pack(first, ends.mixture)
            ends = self._end_streams()
            # the new end changes the mixture only after it, so earlier rows in `_begins` stay valid
            self._begins = {
                stream: row
                for stream, row in self._begins.items()
                if self._left[stream] is not None or row < ends.ends[first]
            }
        return self._build(ends, tuple(self._ended))

    def _count(self, stream: int) -> tuple[Ints, int | None]:
        walker, unknown = self._walkers[stream], self._unknown
        assert isinstance(walker, BestFitWalker)
        assert unknown.lanes.residues is not None
        lane_rows = walker.count_rows(unknown.lanes.cursors[stream], unknown.lanes.residues[stream])
        if len(self._walkers) == 1:  # every row is of the stream, so its tail follows at once
            return lane_rows, None
        _, num_left = self._pack_rest(stream, lane_rows)
        self._is_full[stream] = not num_left
        return lane_rows, None if lane_rows.any() or num_left else 0

    def _find_first_tail(self, ends: StreamEnds) -> int | None:
        """Find the stream with the next tail to pack; None if none begins before the run ends."""
        waiting = [
            stream
            for stream, (left, rows) in enumerate(zip(self._left, self._lane_rows, strict=True))
            if left is None and rows is not None
        ]
        for stream in waiting:
            if stream not in self._begins:
                self._begins[stream] = self._find_begin(ends, stream)
        first = min(waiting, key=lambda stream: self._begins[stream], default=None)
        return None if first is None or self._begins[first] >= ends.end else first

    def _find_begin(self, ends: StreamEnds, stream: int) -> int:
        """Find the row at which a stream's tail begins; `NEVER` if its lanes can fill all rows.

        If no tokens remain for a tail, the result is at most the row after the lanes' last row.
        """
        lane_rows, start = self._lane_rows[stream], self._unknown.start
        assert lane_rows is not None
        walk, last = self._walk(ends.mixture, stream), NEVER
        if self._is_full.get(stream):
            last = min(NEVER, walk.find(start, int(lane_rows.sum()) - 1) + 1)
        return find_first_dry(walk, start, last, lane_rows)

    def _pack(self, stream: int, mixture: Mixture) -> None:
        """Pack a stream's tail, and set the number of rows that remain in the stream."""
        start, begin = self._unknown.start, self._begins[stream]
        rows = mixture_counts.count_rows(mixture, self._recipe.num_lanes, start, begin)[stream]
        self._ended[stream], num_left = self._pack_rest(stream, rows)
        self._left[stream] = int(rows.sum()) + num_left

    def _pack_rest(self, stream: int, rows: Ints) -> tuple[LaneArrays, int]:
        """Return a stream's lanes after `rows` (int64 [lanes]), and its number of tail rows."""
        walker, lanes = self._walkers[stream], self._unknown.lanes
        assert isinstance(walker, BestFitWalker)
        assert lanes.residues is not None
        cursors, residues, is_dry = walker.move(lanes.cursors[stream], rows, lanes.residues[stream])
        assert not is_dry.any()
        ended = arrays_of_stream(cursors, residues)
        return ended, pack_stream_tail(self._recipe, walker, ended, ()).num_rows

    def _find_lane_end(self, ends: StreamEnds, stream: int) -> int:
        if stream in self._begins:
            return min(self._begins[stream], ends.end)
        return super()._find_lane_end(ends, stream)


def find_first_dry(
    walk: mixture_counts.MixtureCounter, start: int, last: int, lane_rows: Ints
) -> int:
    """Find the first row of a stream, from `start` on, that its lane cannot fill; at most `last`.

    `lane_rows` (int64 [lanes]) is the number of rows that each lane can fill.
    """
    if len(walk.mixture.names) == 1:
        return min(last, first_dry_row(lane_rows, start))
    for lane in np.argsort(lane_rows, kind="stable").tolist():
        of_lane, num_rows = replace(walk, lane=lane), int(lane_rows[lane])
        if of_lane.count(start, last) > num_rows:
            last = min(last, of_lane.find(start, num_rows))
    return last


def first_dry_row(num_rows: Ints, row: int) -> int:
    """The first row of a corpus, at or after `row`, that its lane cannot fill.

    `num_rows` (int64 [lanes]) is the number of rows that each lane can fill.

    Example: from row 5, 2 lanes can fill 3 and 1 rows. Lane 1 fills row 5, so row 7 is dry.
    """
    lanes = np.arange(len(num_rows))
    firsts = row + (lanes - row) % len(num_rows)
    return int((firsts + num_rows * len(num_rows)).min())


def _no_rows(recipe: Recipe, ends: StreamEnds) -> DatasetError:
    if len(recipe.components) == 1:
        return no_tokens(recipe.labels)
    names = [
        recipe.labels[component.streams.start]
        for component, end in zip(recipe.components, ends.ends, strict=True)
        if not end
    ]
    stopping = recipe.config.stopping
    return no_tokens(names, f". With stopping={stopping!r}, the mixture then has no rows")


def end_streams(
    mixture: Mixture,
    num_lanes: int,
    start: int,
    rows_left: Sequence[int | None],
    *,
    stops_first: bool,
) -> StreamEnds:
    """Find the ends of streams from the number of rows that each has left at row `start`.

    `rows_left` has None for a stream that does not end.

    With `stops_first`, the run ends with the first stream; otherwise, with the last one.
    """
    return _Ends(mixture, num_lanes, start, rows_left).find(stops_first=stops_first)


class _Ends:
    """The search in `end_streams`. It moves from one stream end or schedule entry to the next."""

    def __init__(
        self, mixture: Mixture, num_lanes: int, start: int, rows_left: Sequence[int | None]
    ) -> None:
        self._mixture, self._num_lanes, self._row = mixture, num_lanes, start
        self._left = list(rows_left)
        self._ends = [NEVER] * len(self._left)
        self._before = [entry for entry in mixture.schedule if entry[0] < start]
        self._waiting = [entry for entry in mixture.schedule if entry[0] > start]
        self._entries: list[tuple[int, Weights]] = []

    def find(self, *, stops_first: bool) -> StreamEnds:
        weights = self._mixture.weights_at(self._row)
        while True:
            if self._note_ends(weights) and stops_first:
                return self._build(self._row)
            live = tuple(
                weight * (left != 0) for weight, left in zip(weights, self._left, strict=True)
            )
            if not any(live):
                if not self._waiting:
                    return self._build(self._row)
                weights = self._waiting.pop(0)[1]
                continue
            self._entries.append((self._row, live))
            stop = self._waiting[0][0] if self._waiting else NEVER
            reached = self._find_first_end(live, stop)
            if reached == NEVER:
                return self._build(NEVER)
            self._move_to(reached, live)
            if self._note_ends(live) and stops_first:
                return self._build(self._row)
            if reached == stop:
                weights = self._waiting.pop(0)[1]

    def _note_ends(self, weights: Weights) -> bool:
        """Record streams that have a weight but no rows left. Returns whether there are any."""
        over = [
            stream
            for stream, left in enumerate(self._left)
            if left == 0 and weights[stream] and self._ends[stream] == NEVER
        ]
        for stream in over:
            self._ends[stream] = self._row
        return bool(over)

    def _walk(self, live: Weights, stream: int) -> mixture_counts.MixtureCounter:
        return mixture_counts.MixtureCounter(
            Mixture(self._mixture.names, ((0, live),)), self._num_lanes, stream
        )

    def _find_first_end(self, live: Weights, stop: int) -> int:
        """The row after the last row of the first stream to end, or `stop` if that is earlier."""
        first, row = stop, self._row
        ending = [s for s, left in enumerate(self._left) if left is not None and live[s]]
        for stream in sorted(ending, key=lambda s: (self._left[s] or 0) / live[s]):
            walk, left = self._walk(live, stream), self._left[stream] or 0
            if first == NEVER or walk.count(row, first) >= left:
                first = min(first, walk.find(row, left - 1) + 1)
        return first

    def _move_to(self, row: int, live: Weights) -> None:
        """Move to a later row, and update the number of rows that each stream has left."""
        for stream, left in enumerate(self._left):
            if left is not None and live[stream]:
                self._left[stream] = left - self._walk(live, stream).count(self._row, row)
        self._row = row

    def _build(self, end: int) -> StreamEnds:
        entries = [*self._before, *self._entries] or list(self._mixture.schedule)
        mixture = replace(self._mixture, schedule=merge_entries(entries))
        return StreamEnds(mixture, tuple(self._ends), end)
