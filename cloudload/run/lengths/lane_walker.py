"""Compute the cursors and statistics of lanes at a later row, without reading documents.

    lane        ····aaaa|bbbb|cccccccc|dd     cursor (a, 4), and 2 rows of 5 units further
                    └─────┴─────┘             cursor (c, 2): tokens [4, 8) of a, b, 2 tokens of c

Positions are found for all lanes of a component at once. Nearby documents are measured one by one.
A distant document is found in three steps: its table by the tables' totals, its block by bisection,
and the document by a scan of the block. Reading the documents would produce the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.rows import tables
from cloudload.run.lengths.lane_tables import UNITS, LaneTables, TableSearch
from cloudload.run.lengths.sizes import DocumentSizes
from cloudload.run.position import Residues
from cloudload.stats import COUNTS, DOCUMENTS, PADDING, TOKENS
from cloudload.system import NEVER, Flags, Floats, Ints, count_within

# above this number of documents, a table is faster than measuring the documents one by one: a table
# that exists, or one that must be built first
SCANNED_WITH_TABLE, SCANNED_WITHOUT = 1 << 16, 1 << 22
_SCANNED_AT_ONCE, _LEAST_OF_LANE = 1 << 20, 8


@dataclass(frozen=True)
class Advanced:
    """The state of lanes after their next rows."""

    cursors: Ints
    """int64 [lanes, 3], with columns `tables.CURSOR_ORDINAL` and so on."""
    counts: Ints
    """int64 [streams of the component, counts]: the statistics of these rows."""
    is_dry: Flags
    """bool [lanes]: whether the lane ends before its rows, or has no tokens at all. If any lane is
    dry, `cursors` is invalid, and other lanes may be dry, too."""
    residues: Residues | None = None
    """Object array of bytes, [lanes]; None if the packing has no residue."""


class LaneWalker:
    """Computes the cursors and statistics of one component's lanes at later rows."""

    def __init__(self, lane_tables: LaneTables) -> None:
        self._tables = lane_tables
        self.sizes, self.packing = lane_tables.sizes, lane_tables.packing
        self._unit_tokens = 1 if self.packing.name == "concat" else self.packing.seq_len
        self._row_units = self.packing.row_units
        self._search = TableSearch(lane_tables)

    def advance(self, cursors: Ints, rows: Ints, residues: Residues | None = None) -> Advanced:
        """Advance each lane from its cursor (int64 [lanes, 3]) by `rows` (int64 [lanes]).

        `residues` is as in `Advanced`. Raises `CacheError` if a table cannot be built, and
        `StreamChangedError` if a cursor does not match the length of its document.
        """
        after, counts = cursors.copy(), np.zeros((len(self._tables.streams), len(COUNTS)), np.int64)
        needed = rows * self._row_units
        moving = np.flatnonzero(needed > 0)
        begun = moving[cursors[moving, tables.CURSOR_OFFSET] > 0]
        if len(begun):
            self._finish_begun(begun, after, needed, counts)
        moving = np.flatnonzero(needed > 0)
        is_dry = np.zeros(len(cursors), np.bool_)
        if len(moving):
            moving, dry = self._scan(moving, after, needed, counts)
            is_dry[dry] = True
        if len(moving) and not is_dry.any():
            is_dry[moving] = self._walk(moving, after, needed[moving], counts)
        self._set_sizes(after, rows > 0)
        # count all padding in the first stream, as reading the rows would
        counts[0, PADDING], counts[1:, PADDING] = counts[:, PADDING].sum(), 0
        return Advanced(after, counts, is_dry)

    def _set_sizes(self, cursors: Ints, moved: Flags) -> None:
        """Set `CURSOR_SIZE` of the lanes that moved: the size of the document that the cursor is
        inside, or 0."""
        cursors[moved, tables.CURSOR_SIZE] = 0
        inside = np.flatnonzero(moved & (cursors[:, tables.CURSOR_OFFSET] > 0))
        if len(inside):
            found = self.sizes.measure(inside, cursors[inside, tables.CURSOR_ORDINAL])
            cursors[inside, tables.CURSOR_SIZE] = found.whole

    def count_units(self, cursors: Ints) -> Ints:
        """The number of units from each cursor to the end of its lane, in a finite run.

        `cursors` is int64 [lanes, 3], and the result int64 [lanes].
        """
        assert self._tables.end is not None
        lanes = np.arange(len(cursors))
        begun = np.flatnonzero(cursors[:, tables.CURSOR_OFFSET])
        units = np.zeros(len(cursors), np.int64)
        found = self._measure_begun(begun, cursors)
        units[begun] = self.packing.units_of(found.whole - cursors[begun, tables.CURSOR_OFFSET])
        table_indices, within = np.divmod(
            cursors[:, tables.CURSOR_ORDINAL] + (cursors[:, tables.CURSOR_OFFSET] > 0),
            self._tables.num_ordinals,
        )
        # all units of each lane's current and later tables, less those before its cursor
        live = np.flatnonzero(table_indices < self._tables.end)
        for index in range(int(table_indices.min()), self._tables.end):
            units += self._tables.totals(index)[:, UNITS] * (table_indices <= index)
        units[live] -= self._search.sums_before(lanes[live], table_indices[live], within[live])[
            :, UNITS
        ]
        return units

    def count_units_before(self, cursors: Ints, lanes: Ints, ordinals: Ints) -> Ints:
        """The number of units from a lane's cursor to the start of a later document of the lane.

        `cursors` is int64 [lanes, 3]; `lanes`, `ordinals` and the result are int64 [documents].
        """
        begun = np.flatnonzero(cursors[:, tables.CURSOR_OFFSET])
        units = np.zeros(len(cursors), np.int64)
        found = self._measure_begun(begun, cursors)
        # the rest of the document that the cursor is inside, then all others: those before the
        # later document, less those before the cursor's next document
        units[begun] = self.packing.units_of(found.whole - cursors[begun, tables.CURSOR_OFFSET])
        heads = cursors[:, tables.CURSOR_ORDINAL] + (cursors[:, tables.CURSOR_OFFSET] > 0)
        first = int(heads.min()) // self._tables.num_ordinals
        own = np.unique(lanes)
        units[own] -= self._units_since(first, own, heads[own])
        return units[lanes] + self._units_since(first, lanes, ordinals)

    def _units_since(self, first: int, lanes: Ints, ordinals: Ints) -> Ints:
        """The number of units in each lane from the start of table `first` to a document."""
        units: Ints = self._search.sums_since(first, lanes, ordinals)[:, UNITS]
        return units

    def count_documents(self, lanes: Ints, heads: Ints, stops: Ints) -> Ints:
        """The statistics of the lanes' documents with ordinals in [`heads`, `stops`).

        Each document counts as read to its end. The arguments are int64 [lanes]. Returns int64
        [streams of the component, counts].
        """
        counts = stops - heads
        first = int(heads.min(initial=0 if not len(heads) else NEVER)) // self._tables.num_ordinals
        is_ready = self._tables.is_ready(first)
        if counts.sum() > (SCANNED_WITH_TABLE if is_ready else SCANNED_WITHOUT):
            since = partial(self._search.sums_since, first, lanes)
            sums = since(stops) - since(heads)
            total: Ints = sums[:, UNITS + 1 :].sum(axis=0)
        else:
            found = self.sizes.measure(
                np.repeat(lanes, counts), np.repeat(heads, counts) + count_within(counts)
            )
            total = self._tables.sum_columns(found, lambda column: column.sum())[UNITS + 1 :]
        return total.reshape(-1, len(COUNTS))

    def measure_rest(self, cursors: Ints) -> list[Ints]:
        """The sizes of the documents from each cursor to the end of its lane, encoded as in
        remnants.

        `cursors` is int64 [lanes, 3]. Returns int64 [documents] for each lane, with `Size.ABSENT`,
        `Size.FILTERED` and `Size.FAILED`. Raises `StreamChangedError` as `advance` does.
        """
        heads = cursors[:, tables.CURSOR_ORDINAL]
        counts = np.maximum(0, self._tables.ends - heads)
        lanes = np.repeat(np.arange(len(cursors)), counts)
        found = self.sizes.measure(lanes, np.repeat(heads, counts) + count_within(counts))
        sizes = found.sizes.copy()
        parts = np.split(sizes, np.cumsum(counts)[:-1])
        begun = np.flatnonzero((cursors[:, tables.CURSOR_OFFSET] > 0) & (counts > 0))
        wholes = self._measure_begun(begun, cursors).whole
        for lane, whole in zip(begun.tolist(), wholes.tolist(), strict=True):
            parts[lane][0] = whole
        return parts

    def _measure_begun(self, lanes: Ints, cursors: Ints) -> DocumentSizes:
        """Measure the documents that the cursors of these lanes are inside.

        Raises `StreamChangedError` if a document's length has changed since its lane began to read
        it.
        """
        ordinals, offsets, sizes = cursors[lanes].T
        found = self.sizes.measure(lanes, ordinals)
        is_wrong = (offsets > found.whole) | ((sizes > 0) & (sizes != found.whole))
        if is_wrong.any():
            index = int(np.argmax(is_wrong))
            raise StreamChangedError(
                f"lane {lanes[index]}: the state is at token {offsets[index]:,} of document "
                f"{ordinals[index]:,}, which had {sizes[index]:,} tokens (0 if unknown), but "
                f"according to the token lengths, it has {found.whole[index]:,}. The data, the "
                "tokenizer, or the transform changed. Restore what changed, or set lengths='off'"
            )
        return found

    def _finish_begun(self, lanes: Ints, cursors: Ints, needed: Ints, counts: Ints) -> None:
        """Advance lanes within the documents that their cursors are inside.

        `min_tokens` and `max_tokens` do not exclude such a document, because it was accepted
        before. Changes `cursors`, `needed` and `counts`.
        """
        found, offsets = self._measure_begun(lanes, cursors), cursors[lanes, tables.CURSOR_OFFSET]
        # take the rest of the document, or as many of its units as the lane needs
        left = found.whole - offsets
        units = self.packing.units_of(left)
        used = np.minimum(units, needed[lanes])
        tokens = np.minimum(left, used * self._unit_tokens)
        is_past = used == units
        cursors[lanes, tables.CURSOR_ORDINAL] += is_past
        cursors[lanes, tables.CURSOR_OFFSET] = np.where(is_past, 0, offsets + tokens)
        needed[lanes] -= used
        # several lanes may be in documents of one stream, so add at each index separately
        own = found.streams - self._tables.streams.start
        np.add.at(counts, (own, np.full_like(own, TOKENS)), tokens)
        np.add.at(counts, (own, np.full_like(own, PADDING)), used * self._unit_tokens - tokens)
        # a document that was accepted before counts as one with tokens
        np.add.at(counts, (own[is_past], np.full(is_past.sum(), DOCUMENTS)), 1)

    def _scan(self, lanes: Ints, cursors: Ints, needed: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Advance lanes that are between documents by measuring a limited number of documents.

        Changes `cursors`, `needed`, and `counts`. Returns the lanes that need to advance further,
        and the dry lanes, which are endless lanes without tokens; see `LaneSizes.is_barren`.
        """
        epoch = int(cursors[lanes, tables.CURSOR_ORDINAL].min()) // self._tables.num_ordinals
        budget = SCANNED_WITH_TABLE if self._tables.is_ready(epoch) else SCANNED_WITHOUT
        each, barren = _LEAST_OF_LANE, np.zeros(len(lanes), np.int64)
        while len(lanes) and (budget := budget - each * len(lanes)) >= 0:
            # measure the next documents of each lane, and find where its target is among them
            targets, starts = needed[lanes], cursors[lanes, tables.CURSOR_ORDINAL]
            ordinals = starts[:, None] + np.arange(each)
            found = self.sizes.measure(np.broadcast_to(lanes[:, None], ordinals.shape), ordinals)
            indices, into, passed = self._search.find_within(found, targets)
            sums = self._search.sum_first(found, indices)
            counts += sums[:, UNITS + 1 :].sum(axis=0).reshape(counts.shape)
            self._set_cursors(lanes, starts + indices, into, cursors, counts)
            needed[lanes] -= passed
            # an endless lane without tokens would never reach its target
            barren = np.where(passed > 0, 0, barren + each)
            is_barren = self.sizes.is_barren(barren) & (self._tables.end is None)
            if is_barren.any():
                return np.flatnonzero(needed > 0), lanes[is_barren]
            # lanes that need more continue, with about as many documents as the mean size suggests
            is_left = (needed[lanes] > 0) & (starts + each < self._tables.ends[lanes])
            mean = max(1.0, passed.sum() / (each * len(lanes)))
            lanes, barren = lanes[is_left], barren[is_left]
            each = self._count_next(needed[lanes] / mean, is_any_barren=bool(barren.any()))
        return np.flatnonzero(needed > 0), lanes[:0]

    def _count_next(self, missing: Floats, *, is_any_barren: bool) -> int:
        """The number of documents of each lane to measure next, all at once.

        `missing` (float64 [lanes]) estimates how many documents each lane needs.
        """
        most = _SCANNED_AT_ONCE // max(1, len(missing))
        if is_any_barren:
            # a lane may have no tokens at all, which this many documents decide: see `is_barren`
            most = min(most, 2 * self.sizes.component.lanes.num_positions)
        return max(_LEAST_OF_LANE, min(int(missing.max(initial=0)) + _LEAST_OF_LANE, most))

    def _set_cursors(
        self, lanes: Ints, ordinals: Ints, into: Ints, cursors: Ints, counts: Ints
    ) -> None:
        """Set each lane's cursor to `into` units inside a document, and count the tokens before it.

        Changes `cursors` and `counts`.
        """
        offsets = into * self._unit_tokens
        cursors[lanes, tables.CURSOR_ORDINAL], cursors[lanes, tables.CURSOR_OFFSET] = (
            ordinals,
            offsets,
        )
        if (begun := np.flatnonzero(offsets)).size:
            found = self.sizes.measure(lanes[begun], ordinals[begun])
            own = found.streams - self._tables.streams.start
            np.add.at(counts, (own, np.full_like(own, TOKENS)), offsets[begun])

    def _walk(self, lanes: Ints, cursors: Ints, needed: Ints, counts: Ints) -> Flags:
        """Advance lanes that are between documents by using tables. Changes `cursors` and `counts`.

        Returns which lanes are dry: bool [lanes].
        """
        table_indices, within = np.divmod(
            cursors[lanes, tables.CURSOR_ORDINAL], self._tables.num_ordinals
        )
        # tables count from their start, so subtract the sums before the cursor, and aim that much
        # further
        sums = -self._search.sums_before(lanes, table_indices, within)
        targets = needed - sums[:, UNITS]
        is_dry = self._search.pass_tables(lanes, table_indices, targets, sums)
        live = np.flatnonzero(~is_dry)
        ordinals, into, last = self._search.find(lanes[live], table_indices[live], targets[live])
        sums[live] += last
        counts += sums[live][:, UNITS + 1 :].sum(axis=0).reshape(counts.shape)
        self._set_cursors(lanes[live], ordinals, into, cursors, counts)
        return is_dry

    def locate(self, starts: Ints, lanes: Ints, units: Ints) -> tuple[Ints, Flags]:
        """Find, for each request, the cursor that is `units` after the start of a lane.

        `starts` is int64 [all lanes, 3]. `lanes` and `units` are int64 [requests], where a lane may
        be repeated. Returns the cursors, int64 [requests, 3], without their sizes, and which lanes
        are dry, bool [requests]; see `Advanced.is_dry`. Raises `CacheError` if a table cannot be
        built, and `StreamChangedError` if a start does not match the length of its document.
        """
        cursors, units = starts[lanes], units.copy()
        begun = np.flatnonzero(cursors[:, tables.CURSOR_OFFSET] > 0)
        offsets = cursors[begun, tables.CURSOR_OFFSET]
        left = self.packing.units_of(self._measure_begun(lanes[begun], starts).whole - offsets)
        is_past = units[begun] >= left
        cursors[begun, tables.CURSOR_ORDINAL] += is_past
        cursors[begun, tables.CURSOR_OFFSET] = np.where(
            is_past, 0, offsets + units[begun] * self._unit_tokens
        )
        units[begun] -= left
        further = np.flatnonzero(units >= 0)
        is_dry = np.zeros(len(lanes), np.bool_)
        is_dry[further] = self._locate(lanes[further], cursors, further, units[further])
        return cursors, is_dry

    def _locate(self, lanes: Ints, cursors: Ints, indices: Ints, units: Ints) -> Flags:
        """Move the cursors at `indices`, which are between documents, by `units`.

        Changes `cursors`. Returns which of them are dry: bool [indices].
        """
        ordinals = cursors[indices, tables.CURSOR_ORDINAL]
        table_indices, within = np.divmod(ordinals, self._tables.num_ordinals)
        sums = self._search.sums_before(lanes, table_indices, within)
        targets = units + sums[:, UNITS]
        is_dry = self._search.pass_tables(lanes, table_indices, targets, sums)
        live = np.flatnonzero(~is_dry)
        ordinals, into, _ = self._search.find(lanes[live], table_indices[live], targets[live])
        cursors[indices[live], tables.CURSOR_ORDINAL] = ordinals
        cursors[indices[live], tables.CURSOR_OFFSET] = into * self._unit_tokens
        return is_dry
