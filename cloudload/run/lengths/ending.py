"""The ends of a run's streams, and the tails that pack what is left of each.

    units left in each lane ─► first row that a lane cannot fill ─► sizes of the documents left
                                                                        └─► tail, packed when read

    rows of stream b     b b b b b b b b b │ b b b b │        then its weight is 0
    made from            its lanes         │ its tail │
                                           └ the first row that its lane cannot fill

The tail of a stream packs all tokens that remain in its lanes at that row, as if they were one
lane. The mixture still decides which rows belong to the stream, so the tail does not change the
shares. A corpus is a mixture of one stream: all of its rows from that row on are of its tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cloudload.errors import DatasetError, StreamChangedError
from cloudload.order import Mixture, mixture_counts
from cloudload.rows import (
    Stages,
    Tail,
    counts_of_sizes,
    next_stages,
    pack_tail,
    tables,
    take_rows,
)
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.position import LaneArrays, Position, Residues
from cloudload.run.recipe import Recipe
from cloudload.stats import COUNTS, PADDING, TOKENS, TRUNCATED
from cloudload.system import NEVER, Flags, Ints

_LISTED = 1 << 16


@dataclass(frozen=True)
class Ending:
    """The ends of a run's streams, computed from a position. It can be pickled.

    A stream is a component of the recipe: all streams of a corpus count as one.
    """

    mixture: Mixture
    """The mixture, in which each stream has weight 0 after its end."""
    start: int
    """The row of the position's cursors."""
    end: int
    """The number of rows in the run; `NEVER` if it is endless."""
    stream_ends: tuple[int, ...]
    """The row after the last row of each stream; `NEVER` if the stream does not end."""
    lane_ends: tuple[int, ...]
    """The first row of each stream, from `start` on, that is in the stream's tail."""
    lanes: LaneArrays
    """The lanes of the position, and the stages of its tails."""
    ended: tuple[LaneArrays | None, ...] = ()
    """Each stream's lanes at the row where its tail starts, as arrays with a single component. None
    for a stream whose lanes at that row are not computed yet."""
    packed: Tail | None = None
    """The tail of a corpus, if its documents were measured. Otherwise, lengths determine it."""

    def stages_of(self, component: int) -> Stages:
        """The stages of a stream's tail at the position; empty before its tail."""
        return self.lanes.tails[component] if self.lanes.tails else ()

    @property
    def tail_start(self) -> int:
        """The row at which the tail of a corpus starts, which may be before the position."""
        return self.lane_ends[0] - sum(rows for _, rows in self.stages_of(0))

    def take(self, rows: Ints) -> Ending:
        """Return a copy whose `packed` tail has only the rows `rows` of the run (int64 [rows])."""
        assert self.packed is not None
        return replace(self, packed=take_rows(self.packed, rows - self.tail_start))


class TailCounts:
    """The statistics of a tail's rows.

    `streams` (int64 [remnants]) is the stream of each remnant. The statistics of `padding_stream`
    include the padding of all rows.
    """

    def __init__(self, recipe: Recipe, tail: Tail, streams: Ints, padding_stream: int = 0) -> None:
        self._recipe, self._tail, self._streams = recipe, tail, streams
        self._padding_stream = padding_stream

    def before(self, row: int) -> Ints:
        """The statistics of the rows from the stage's first row to `row`: int64 [streams, counts].

        Rows after the end of the tail are padding.
        """
        tail, packing = self._tail, self._recipe.packing
        num_rows = max(0, row - tail.first_row)
        counts = np.zeros((len(self._recipe.labels), len(COUNTS)), np.int64)
        pieces = tail.pieces[tail.pieces[:, tables.PIECE_ROW] < num_rows]
        tokens = pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START]
        np.add.at(counts[:, TOKENS], self._streams[pieces[:, tables.PIECE_DOCUMENT]], tokens)
        self._count_documents(counts, int(tail.passed[min(num_rows, tail.num_rows)]))
        counts[self._padding_stream, PADDING] = num_rows * packing.seq_len - int(tokens.sum())
        return counts

    def of_rest(self) -> Ints:
        """The statistics of a tail without rows, whose documents have no tokens left.

        Returns int64 [streams, counts].
        """
        counts = np.zeros((len(self._recipe.labels), len(COUNTS)), np.int64)
        self._count_documents(counts, len(self._tail.remnants))
        return counts

    def _count_documents(self, counts: Ints, num_remnants: int) -> None:
        """Add the documents of the first `num_remnants` remnants to `counts`."""
        sizes = self._tail.remnants[:num_remnants, tables.REMNANT_SIZE]
        counted = np.flatnonzero(sizes != tables.Size.ABSENT)
        streams, sizes = self._streams[counted], sizes[counted]
        np.add.at(counts, (streams, counts_of_sizes(sizes)), 1)
        packing = self._recipe.packing
        if packing.cuts:
            cut_off = np.maximum(0, sizes - packing.seq_len)
            np.add.at(counts[:, TRUNCATED], streams, cut_off)


class Tails:
    """The tails of a run's streams, each packed when it is first needed.

    `recipe` must have the mixture of `ending`, and `root` is the cache folder. There are no
    `walkers` if the documents were measured. A tail's rows are indexed from 0.
    """

    def __init__(
        self, recipe: Recipe, root: Path, walkers: Sequence[LaneWalker], ending: Ending
    ) -> None:
        self.ending, self.recipe = ending, recipe
        self._root, self._walkers = root, walkers
        self._packed: dict[int, Tail] = {}
        self._counts: dict[int, TailCounts] = {}
        self._ended: dict[int, LaneArrays] = {}

    def is_in_tail(self, components: Ints, rows: Ints) -> Flags:
        """Whether each row is in its stream's tail: bool [rows]. `components` are their streams."""
        is_later: Flags = np.array(self.ending.lane_ends)[components] <= rows
        return is_later

    def count_rows(self, component: int, row: int) -> int:
        """Count the rows of a stream's tail before `row`, which must be at least `start`.

        After its end, a mixture must not be asked. A corpus counts padding as rows of its tail.
        """
        before = sum(rows for _, rows in self.ending.stages_of(component))
        return before + self._walk(component).count(self.ending.lane_ends[component], row)

    def indices_of(self, components: Ints, rows: Ints) -> Ints:
        """The index of each row within its stream's tail: int64 [rows].

        `components` (int64 [rows]) are the streams of the rows.
        """
        low, high = int(rows.min(initial=NEVER)), int(rows.max(initial=0))
        # rows that are far apart are numbered one by one, because listing those between takes long
        if high - low > _LISTED:
            pairs = zip(components.tolist(), rows.tolist(), strict=True)
            return np.array([self.count_rows(*pair) for pair in pairs], np.int64)
        # otherwise, list the stream of every row in the range once, for all components
        mixture, indices = self.ending.mixture, np.empty(len(rows), np.int64)
        listed = mixture.components(np.arange(low, high + 1), self.recipe.num_lanes)
        for component in np.unique(components).tolist():
            own = components == component
            first = max(low, self.ending.lane_ends[component])
            is_own = listed[first - low :] == component
            # a row's index is that of the first row, plus the stream's rows in between
            before = np.cumsum(is_own) - is_own
            indices[own] = self.count_rows(component, first) + before[rows[own] - first]
        return indices

    def find(self, components: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Find the documents of rows of tails, as `RowFinder.find` does.

        `components` (int64 [rows]) are the streams of `rows` (int64 [rows], ascending). Returns
        pieces, int64 [pieces, 4], by ascending row, and the size of each piece's document, int64
        [pieces]. Raises the errors of `tail`.
        """
        pieces, sizes = [np.empty((0, tables.NUM_PIECE_COLUMNS), np.int64)], [np.empty(0, np.int64)]
        for tail, own, indices in self._by_stream(components, rows):
            found = tail.find(indices)
            remnants = tail.remnants[found[:, tables.PIECE_DOCUMENT]]
            found[:, tables.PIECE_ROW] = own[found[:, tables.PIECE_ROW]]
            found[:, tables.PIECE_DOCUMENT] = tables.document_keys(
                remnants[:, tables.REMNANT_LANE], remnants[:, tables.REMNANT_ORDINAL]
            )
            pieces.append(found)
            sizes.append(remnants[:, tables.REMNANT_STOP])
        joined = np.concatenate(pieces)
        in_order = np.argsort(joined[:, tables.PIECE_ROW], kind="stable")
        return joined[in_order], np.concatenate(sizes)[in_order]

    def find_counted(self, components: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Find the remnants whose documents rows of tails count; the arguments are those of `find`.

        Returns, for each, the index of its row in `rows`, int64 [n], and the remnant, int64 [n, 5].
        """
        counted = [np.empty(0, np.int64)]
        remnants = [np.empty((0, tables.NUM_REMNANT_COLUMNS), np.int64)]
        for tail, own, indices in self._by_stream(components, rows):
            of_rows, found = tail.find_counted(indices)
            counted.append(own[of_rows])
            remnants.append(found)
        return np.concatenate(counted), np.concatenate(remnants)

    def _by_stream(self, components: Ints, rows: Ints) -> Iterator[tuple[Tail, Ints, Ints]]:
        """Yield each stream's tail, the stream's indices in `rows`, and its rows' indices in the
        tail."""
        in_tails = self.indices_of(components, rows)
        for component in np.unique(components).tolist():
            own = np.flatnonzero(components == component)
            yield self.tail(component), own, in_tails[own]

    def row_of(self, component: int, index: int) -> int:
        """Convert a row's index in a stream's tail, `index`, to its index in the run."""
        before = sum(rows for _, rows in self.ending.stages_of(component))
        return self._walk(component).find(self.ending.lane_ends[component], index - before)

    def _walk(self, component: int) -> mixture_counts.MixtureCounter:
        return mixture_counts.MixtureCounter(self.ending.mixture, self.recipe.num_lanes, component)

    def ended(self, component: int) -> LaneArrays:
        """Return a stream's lanes at the row where its tail starts; see `arrays_of_stream`."""
        if component not in self._ended:
            known = self.ending.ended[component] if self.ending.ended else None
            self._ended[component] = known or self._advance_to_end(component)
        return self._ended[component]

    def _advance_to_end(self, component: int) -> LaneArrays:
        ending, last = self.ending, self.ending.lane_ends[component]
        rows = mixture_counts.count_rows(ending.mixture, self.recipe.num_lanes, ending.start, last)[
            component
        ]
        lanes = ending.lanes
        residues = None if lanes.residues is None else lanes.residues[component]
        advanced = self._walkers[component].advance(lanes.cursors[component], rows, residues)
        assert not advanced.is_dry.any()
        return arrays_of_stream(advanced.cursors, advanced.residues)

    def tail(self, component: int) -> Tail:
        """Return a stream's tail. The lanes of its remnants are flat lanes.

        Raises `StreamChangedError` if a cursor does not match the lengths.
        """
        if component not in self._packed:
            tail = self.ending.packed
            if tail is None:
                stages, ended = self.ending.stages_of(component), self.ended(component)
                tail = pack_stream_tail(self.recipe, self._walkers[component], ended, stages)
            remnants = tail.remnants.copy()
            remnants[:, tables.REMNANT_LANE] += component * self.recipe.num_lanes
            self._packed[component] = replace(tail, remnants=remnants)
        return self._packed[component]

    def counts(self, component: int) -> TailCounts:
        """The statistics of a stream's tail. Raises the errors of `tail`."""
        if component not in self._counts:
            tail, own = self.tail(component), self.recipe.components[component]
            streams = self._find_streams(component, tail.remnants)
            self._counts[component] = TailCounts(self.recipe, tail, streams, own.streams.start)
        return self._counts[component]

    def _find_streams(self, component: int, remnants: Ints) -> Ints:
        """The stream of each remnant of a component: int64 [remnants]."""
        own = self.recipe.components[component]
        if len(own.streams) == 1:
            return np.full(len(remnants), own.streams.start)
        lanes, ordinals = remnants[:, [tables.REMNANT_LANE, tables.REMNANT_ORDINAL]].T
        lanes = lanes - component * self.recipe.num_lanes
        _, samples = own.find_samples(own.orders(self._root), lanes, ordinals)
        return self.recipe.corpus.streams_of(samples)

    def count_rest(self, position: Position) -> Ints:
        """The statistics of the documents that no row counts when the run ends at a position.

        They are the last ones of a corpus, if none has tokens. Returns int64 [streams, counts].
        """
        stages = position.stages_of(0)
        # older states of a mixture of one stream count them, which a stage without rows records
        is_counted = bool(stages) and not sum(rows for _, rows in stages)
        if is_counted or len(self.ending.lane_ends) > 1 or self.tail(0).num_rows:
            return np.zeros((len(self.recipe.labels), len(COUNTS)), np.int64)
        return self.counts(0).of_rest()

    def advance(self, position: Position, row: int) -> LaneArrays | None:
        """Compute the lanes at `row`. Only a corpus may be padded, to a row after its end.

        Returns None if a lane of an endless stream has no tokens. Raises the errors of
        `advance_lanes` and `tail`.
        """
        first = position.table_rows
        stops = [
            first if position.stages_of(component) else max(first, min(row, end))
            for component, end in enumerate(self.ending.lane_ends)
        ]
        arrays = advance_lanes(self.recipe, self._walkers, position, stops)
        if arrays is None:
            return None
        tails = [self._enter(index, (position, row), arrays.counts) for index in range(len(stops))]
        return replace(arrays, tails=tuple(tails) if any(tails) else ())

    def _enter(self, component: int, move: tuple[Position, int], counts: Ints) -> Stages:
        """The stages of a stream's tail after `move`, from a position to a row.

        Adds to `counts` the statistics of the tail's rows between the two. If a tail of a mixture
        has no rows, its documents count with the end of the stream. Those of a corpus count with no
        row; see `count_rest`.
        """
        (position, row), ending = move, self.ending
        before = position.stages_of(component)
        first, stop = sum(rows for _, rows in before), self.count_rows(component, row)
        has_ended = not before and row >= ending.stream_ends[component]
        if stop > first:
            counted = self.counts(component)
            counts += counted.before(stop) - counted.before(first)
        elif has_ended and len(ending.lane_ends) > 1:
            counts += self.counts(component).of_rest()
        elif not before:
            return ()
        return next_stages(ending.stages_of(component), self.recipe.packing.seq_len, 0, stop)

    def end_lanes(self, arrays: LaneArrays, row: int) -> LaneArrays:
        """Return the lanes of a corpus at a row of its tail, whose counts are those of `arrays`."""
        stages, seq_len = self.ending.stages_of(0), self.recipe.packing.seq_len
        stages = next_stages(stages, seq_len, 0, self.count_rows(0, row))
        return replace(self.ended(0), counts=arrays.counts, tails=(stages,))


def advance_lanes(
    recipe: Recipe, walkers: Sequence[LaneWalker], position: Position, stops: Sequence[int]
) -> LaneArrays | None:
    """Compute the lanes of each component at its row of `stops`, none of which is in its tail.

    Returns None if a lane ends before it, or has no tokens. Raises `CacheError` if an order or a
    table cannot be built, and `StreamChangedError` if a cursor does not match the lengths.
    """
    arrays, start = position.lanes.arrays.copy(), position.table_rows
    for stop in {*stops} - {start}:
        rows = mixture_counts.count_rows(recipe.mixture, recipe.num_lanes, start, stop)
        for index in np.flatnonzero(np.array(stops) == stop).tolist():
            left = None if arrays.residues is None else arrays.residues[index]
            advanced = walkers[index].advance(arrays.cursors[index], rows[index], left)
            if advanced.is_dry.any():
                return None
            arrays.cursors[index] = advanced.cursors
            if arrays.residues is not None:
                arrays.residues[index] = advanced.residues
            streams = recipe.components[index].streams
            arrays.counts[streams.start : streams.stop] += advanced.counts
    return arrays


def end_corpus(
    recipe: Recipe, position: Position, ended: Position, sizes: Sequence[Ints]
) -> Ending:
    """Return the ending of a corpus whose first lane ran dry, for a run that is at `position`.

    `ended` has the lanes and the row at which they ended. `sizes` has the sizes of the documents
    left in each lane; see `pack_tail`. Raises `StreamChangedError` if the lanes do not match the
    documents, and `DatasetError` if the whole run has no tokens.
    """
    stages = position.stages_of(0)
    start = ended.lanes_row + sum(rows for _, rows in stages)
    tail = pack_component_tail(recipe, stages=stages, ended=ended.lanes.arrays, sizes=sizes)
    end = max(start, ended.lanes_row + tail.end)
    if not end:
        raise no_tokens(recipe.labels)
    return Ending(
        mixture=recipe.mixture,
        start=position.table_rows,
        end=end,
        stream_ends=(end,),
        lane_ends=(start,),
        lanes=position.lanes.arrays,
        ended=(ended.lanes.arrays,),
        packed=tail,
    )


def arrays_of_stream(cursors: Ints, residues: Residues | None) -> LaneArrays:
    """Return a stream's lanes as arrays of one component without statistics.

    `cursors` is int64 [lanes, 3], and `residues` an object array of bytes, [lanes].
    """
    left = None if residues is None else residues[None]
    return LaneArrays(cursors[None], left, np.empty((0, 0), np.int64))


def pack_stream_tail(recipe: Recipe, walker: LaneWalker, ended: LaneArrays, stages: Stages) -> Tail:
    """Pack the tokens that remain in a stream's lanes. The tail's rows are indexed from 0.

    Raises `StreamChangedError` if a cursor or a residue does not match the lengths.
    """
    sizes = walker.measure_rest(ended.cursors[0])
    return pack_component_tail(recipe, stages=stages, ended=ended, sizes=sizes)


def pack_component_tail(
    recipe: Recipe, *, stages: Stages, ended: LaneArrays, sizes: Sequence[Ints]
) -> Tail:
    """Pack the tail of one component. It may have no rows, which are indexed from 0.

    `ended` has the component's lanes at the row where they ended. `stages` are the tail's stages so
    far; empty if the run did not resume in its tail. `sizes` are as for `tail.pack_tail`. Raises
    `StreamChangedError` if the lanes do not match the documents.
    """
    residues = ended.residues
    try:
        return pack_tail(
            recipe.packing,
            start_row=0,
            stages=stages,
            cursors=ended.cursors[0, :, : tables.CURSOR_SIZE],
            residues=[b""] * recipe.num_lanes if residues is None else residues[0].tolist(),
            sizes=sizes,
        )
    except ValueError as error:
        raise StreamChangedError(
            f"{error}. The state is damaged, or was saved with a different corpus, tokenizer or "
            "transform, or the transform is not deterministic. Load an earlier state, restore the "
            "data and the config, or fix the transform"
        ) from error


def no_tokens(labels: Sequence[str], consequence: str = "") -> DatasetError:
    """The error that a run has no rows, because these streams have no tokens."""
    return DatasetError(
        f"no document of {', '.join(labels)} has any tokens, because all documents are empty, "
        f"filtered out, or left out by on_error='skip'{consequence}. Set an eos, or use a "
        "different transform, min_tokens, max_tokens, or data"
    )
