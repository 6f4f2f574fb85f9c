"""Find the ends of a mixture's streams, and the rows of the streams' tails, from lengths.

    rows of stream b     b b b b b b b b b │ b b b b │        then its weight is 0
    made from            its lanes         │ its tail │
                                           └ the first row that its lane cannot fill

The tail of a stream has all tokens left in its lanes at that row, packed as one lane. The mixture
still decides which rows are the stream's, so shares stay exact until its last token. The number of
a stream's rows, and therefore its end, depends only on its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.arrays import NEVER, Flags, Ints
from cloudload.config.choices import FIRST
from cloudload.errors import DatasetError
from cloudload.lengths.advance import Walker
from cloudload.lengths.ending import TailCounts
from cloudload.order.mixture import Mixture
from cloudload.order.mixture_counts import Walk, count_rows
from cloudload.order.stream_ends import StreamEnds, end_streams
from cloudload.packing.tables import REMNANT_LANE, REMNANT_ORDINAL
from cloudload.packing.tail import Stages, Tail, next_stages
from cloudload.run.position import LaneArrays, Position
from cloudload.run.recipe import Recipe
from cloudload.run.run_tail import pack_component_tail

_LISTED = 1 << 16


@dataclass(frozen=True)
class MixtureEnding:
    """The ends of a mixture's streams, found at a position. It can be pickled."""

    mixture: Mixture
    """The mixture. After its end, a stream has weight 0."""
    start: int
    """The row of the position."""
    end: int
    """The number of rows in the run; `NEVER` if it is endless."""
    stream_ends: tuple[int, ...]
    """The row at which each stream has ended; `NEVER` if it does not end."""
    lane_ends: tuple[int, ...]
    """The first row of each stream, from `start` on, that is in its tail."""
    cursors: Ints
    """int64 [streams, lanes, 3]: the cursors at the position."""
    tails: tuple[Stages, ...]
    """The stages of each stream's tail at the position; empty before its tail."""

    def stages_of(self, component: int) -> Stages:
        """The stages of a stream's tail at the position; empty before its tail."""
        return self.tails[component] if self.tails else ()


class MixtureTails:
    """The tails of a mixture's streams, each packed when it is first needed.

    The recipe's mixture is that of the ending. A tail's rows are indexed from 0.
    """

    def __init__(self, recipe: Recipe, walkers: Sequence[Walker], ending: MixtureEnding) -> None:
        self.ending = ending
        self._recipe, self._walkers = recipe, walkers
        self._packed: dict[int, tuple[Tail, TailCounts]] = {}
        self._ended: dict[int, Ints] = {}

    def is_in_tail(self, components: Ints, rows: Ints) -> Flags:
        """Whether rows, given with their streams, are in their streams' tails: bool [rows]."""
        is_later: Flags = np.array(self.ending.lane_ends)[components] <= rows
        return is_later

    def number(self, component: int, row: int) -> int:
        """Count the rows of a stream's tail before `row`, which must be at least `start`."""
        ending = self.ending
        first, row = ending.lane_ends[component], min(row, ending.end)
        before = sum(rows for _, rows in ending.stages_of(component))
        return before + (self._walk(component).count(first, row) if row > first else 0)

    def number_rows(self, components: Ints, rows: Ints) -> Ints:
        """The index of each row, given with its stream, within the stream's tail: int64 [rows]."""
        low, high = int(rows.min(initial=NEVER)), int(rows.max(initial=0))
        if high - low > _LISTED:
            pairs = zip(components.tolist(), rows.tolist(), strict=True)
            return np.array([self.number(*pair) for pair in pairs], np.int64)
        mixture, numbers = self.ending.mixture, np.empty(len(rows), np.int64)
        listed = mixture.components(np.arange(low, high + 1), self._recipe.num_lanes)
        for component in np.unique(components).tolist():
            own = components == component
            first = max(low, self.ending.lane_ends[component])
            is_own = listed[first - low :] == component
            before = np.cumsum(is_own) - is_own
            numbers[own] = self.number(component, first) + before[rows[own] - first]
        return numbers

    def row_of(self, component: int, number: int) -> int:
        """The index in the run of a row of a stream's tail."""
        before = sum(rows for _, rows in self.ending.stages_of(component))
        return self._walk(component).find(self.ending.lane_ends[component], number - before)

    def _walk(self, component: int) -> Walk:
        return Walk(self.ending.mixture, self._recipe.num_lanes, component)

    def ended(self, component: int) -> Ints:
        """The cursors at which a stream's lanes end: int64 [lanes, 3]."""
        if component not in self._ended:
            ending, num_lanes = self.ending, self._recipe.num_lanes
            last = ending.lane_ends[component]
            rows = count_rows(ending.mixture, num_lanes, ending.start, last)[component]
            advanced = self._walkers[component].advance(ending.cursors[component], rows)
            assert not advanced.is_dry.any()
            self._ended[component] = advanced.cursors
        return self._ended[component]

    def tail(self, component: int) -> Tail:
        """The tail of a stream. Its remnants have flat lanes.

        Raises `StreamChangedError` if a cursor does not match the lengths.
        """
        return self._pack(component)[0]

    def counts(self, component: int) -> TailCounts:
        """The statistics of a stream's tail. Raises the errors of `tail`."""
        return self._pack(component)[1]

    def _pack(self, component: int) -> tuple[Tail, TailCounts]:
        if component not in self._packed:
            recipe, walker = self._recipe, self._walkers[component]
            cursors = self.ended(component)
            tail = pack_component_tail(
                recipe,
                start=0,
                stages=self.ending.stages_of(component),
                ended=LaneArrays(cursors[None], None, np.empty((0, 0), np.int64)),
                sizes=walker.measure_rest(cursors),
            )
            remnants = tail.remnants.copy()
            streams = walker.streams_of(*remnants[:, [REMNANT_LANE, REMNANT_ORDINAL]].T)
            remnants[:, REMNANT_LANE] += component * recipe.num_lanes
            tail = replace(tail, remnants=remnants)
            stream = recipe.components[component].streams.start
            self._packed[component] = tail, TailCounts(recipe, tail, streams, stream)
        return self._packed[component]


def find_mixture_ending(
    recipe: Recipe, walkers: Sequence[Walker], position: Position, row_units: int
) -> MixtureEnding:
    """Find the ends of a mixture's streams from a position on.

    `row_units` is the number of units of a row. Raises `CacheError` if an order or a table cannot
    be built, `StreamChangedError` if a cursor does not match the lengths, and `DatasetError` if the
    run has no rows.
    """
    assert position.rows == position.table_rows
    unknown = MixtureEnding(
        mixture=recipe.mixture,
        start=position.rows,
        end=NEVER,
        stream_ends=(),
        lane_ends=(position.rows,) * len(walkers),
        cursors=position.cursors,
        tails=position.lanes.arrays.tails,
    )
    tails, units = MixtureTails(recipe, walkers, unknown), _count_units(recipe, walkers, unknown)
    left = [_count_left(tails, number, each, row_units) for number, each in enumerate(units)]
    stops_first = recipe.config.stopping == FIRST
    ends = end_streams(
        recipe.mixture, recipe.num_lanes, position.rows, left, stops_first=stops_first
    )
    if not ends.end:
        raise _no_rows(recipe, ends)
    last_rows = [min(each, ends.end) for each in ends.ends]
    lane_ends = [
        _find_lane_end(walk, position.rows, last, None if each is None else each // row_units)
        for walk, last, each in zip(_walk_all(ends.mixture, recipe), last_rows, units, strict=True)
    ]
    return replace(
        unknown,
        mixture=ends.mixture,
        end=ends.end,
        stream_ends=ends.ends,
        lane_ends=tuple(lane_ends),
    )


def _count_units(
    recipe: Recipe, walkers: Sequence[Walker], ending: MixtureEnding
) -> list[Ints | None]:
    """The units left in the lanes of each stream, int64 [lanes], which are 0 in its tail.

    None for a stream that does not end.
    """
    counted: list[Ints | None] = []
    for number, (component, walker) in enumerate(zip(recipe.components, walkers, strict=True)):
        if component.lanes.epochs is None:
            counted.append(None)
        elif ending.stages_of(number):
            counted.append(np.zeros(recipe.num_lanes, np.int64))
        else:
            counted.append(walker.count_units(ending.cursors[number]))
    return counted


def _count_left(
    tails: MixtureTails, component: int, units: Ints | None, row_units: int
) -> int | None:
    """The number of rows that a stream has left; None for a stream that does not end."""
    if units is None:
        return None
    if tails.ending.stages_of(component):
        return tails.tail(component).end - tails.number(component, tails.ending.start)
    return -(-int(units.sum()) // row_units)


def _walk_all(mixture: Mixture, recipe: Recipe) -> list[Walk]:
    return [Walk(mixture, recipe.num_lanes, each) for each in range(len(recipe.components))]


def _find_lane_end(walk: Walk, start: int, last: int, lane_rows: Ints | None) -> int:
    """The first row of a stream from `start` on that its lane cannot fill, or at most `last`.

    `lane_rows` (int64 [lanes]) is the number of rows that each lane can fill; None if endless.
    """
    if lane_rows is None:
        return NEVER
    for lane in np.argsort(lane_rows, kind="stable").tolist():
        of_lane, number = replace(walk, lane=lane), int(lane_rows[lane])
        if of_lane.count(start, last) > number:
            last = min(last, of_lane.find(start, number))
    return last


def _no_rows(recipe: Recipe, ends: StreamEnds) -> DatasetError:
    names = [
        recipe.labels[component.streams.start]
        for component, end in zip(recipe.components, ends.ends, strict=True)
        if not end
    ]
    return DatasetError(
        f"no document of {', '.join(names)} has any tokens, because all are empty, filtered out, "
        "or left out by on_error='skip', so the mixture has no rows with "
        f"stopping={recipe.config.stopping!r}. Set an eos, or use a different transform, "
        "min_tokens, or data"
    )


def advance_mixture(
    recipe: Recipe, walkers: Sequence[Walker], tails: MixtureTails, position: Position, row: int
) -> LaneArrays | None:
    """The lanes at a row up to the end, or None if a lane of an endless stream has no tokens.

    Raises `CacheError` if an order or a table cannot be built, and `StreamChangedError` if a cursor
    does not match the lengths.
    """
    cursors, counts = position.cursors.copy(), position.counts.copy()
    rows_before: dict[int, Ints] = {}
    stages = [position.stages_of(component) for component in range(len(walkers))]
    for component, walker in enumerate(walkers):
        if not stages[component]:
            stop = max(position.rows, min(row, tails.ending.lane_ends[component]))
            if stop not in rows_before:
                start = position.rows
                rows_before[stop] = count_rows(recipe.mixture, recipe.num_lanes, start, stop)
            advanced = walker.advance(cursors[component], rows_before[stop][component])
            if advanced.is_dry.any():
                return None
            cursors[component] = advanced.cursors
            counts[recipe.components[component].streams.start] += advanced.counts[0]
        stages[component] = _enter_tail(recipe, tails, component, (position, row), counts)
    return LaneArrays(cursors, None, counts, tuple(stages) if any(stages) else ())


def _enter_tail(
    recipe: Recipe,
    tails: MixtureTails,
    component: int,
    move: tuple[Position, int],
    counts: Ints,
) -> Stages:
    """The stages of a stream's tail after a move from a position to a row.

    Adds the statistics of the tail's rows in between to `counts`.
    """
    (position, row), ending = move, tails.ending
    before = position.stages_of(component)
    first, stop = sum(rows for _, rows in before), tails.number(component, row)
    has_ended = not before and row >= ending.stream_ends[component]
    if stop > first:
        counted = tails.counts(component)
        counts += counted.before(stop) - counted.before(first)
    elif has_ended:
        counts += tails.counts(component).of_rest()
    elif not before:
        return ()
    stages = ending.stages_of(component)
    return next_stages(stages, recipe.config.seq_len, 0, stop)
