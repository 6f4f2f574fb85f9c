"""Search the tables of lanes for the document that contains a unit, and for sums of documents.

table ─► totals: passed whole ─► bisection: the block ─► scan: the document with the unit
"""

from __future__ import annotations

import numpy as np

from cloudload.rows.packing.packers import Packing
from cloudload.run.lengths.sizes import DocumentSizes, LaneSizes, units_of
from cloudload.run.lengths.tables import UNITS, LaneTables
from cloudload.system.arrays import Flags, Ints


class TableSearch:
    """Searches the tables of one component's lanes.

    In all methods, `numbers[i]` is the index of a table for lane `lanes[i]`, and `within[i]` is the
    index of a document of that lane within the table.
    """

    def __init__(self, tables: LaneTables, sizes: LaneSizes, packing: Packing) -> None:
        self._tables, self._sizes, self._packing = tables, sizes, packing

    def sums_since(self, first: int, lanes: Ints, ordinals: Ints) -> Ints:
        """The sums of each lane from the start of table `first` to a document: [lanes, columns]."""
        numbers, within = np.divmod(ordinals, self._tables.num_ordinals)
        sums = self.sums_before(lanes, numbers, within)
        for number in range(first, int(numbers.max(initial=first))):
            sums += self._tables.totals(number)[lanes] * (number < numbers)[:, None]
        return sums

    def sums_before(self, lanes: Ints, numbers: Ints, within: Ints) -> Ints:
        """The sums of a table before its document `within`, for each lane: [lanes, columns]."""
        blocks, places = np.divmod(within, self._tables.block)
        found = self._measure_block(lanes, numbers, blocks)
        return self._look_up(lanes, numbers, blocks) + self.sum_first(found, places)

    def pass_tables(self, lanes: Ints, numbers: Ints, targets: Ints, sums: Ints) -> Flags:
        """Advance each lane past the tables that end before its target unit.

        Changes `numbers` to the tables that contain the targets, makes `targets` relative to these
        tables, and adds the totals of the passed tables to `sums`. Returns which lanes are dry:
        bool [lanes].
        """
        is_dry, barren = np.zeros(len(lanes), np.bool_), np.zeros(len(lanes), np.int64)
        while (short := self._find_short(lanes, numbers, targets, is_dry)).size:
            totals = self._totals(lanes[short], numbers[short])
            sums[short] += totals
            targets[short] -= totals[:, UNITS]
            numbers[short] += 1
            barren[short] = np.where(totals[:, UNITS] == 0, barren[short] + 1, 0)
            is_dry |= self._tables.is_barren(barren)
            if self._tables.end is not None:
                is_dry |= numbers >= self._tables.end
        return is_dry

    def _find_short(self, lanes: Ints, numbers: Ints, targets: Ints, is_dry: Flags) -> Ints:
        """The lanes, as indices, whose target is beyond their current table."""
        totals = self._totals(lanes, np.where(is_dry, 0, numbers))[:, UNITS]
        return np.flatnonzero((targets > totals) & ~is_dry)

    def _totals(self, lanes: Ints, numbers: Ints) -> Ints:
        sums = np.empty((len(lanes), self._tables.num_columns), np.int64)
        for number in np.unique(numbers).tolist():
            own = numbers == number
            sums[own] = self._tables.totals(number)[lanes[own]]
        return sums

    def _look_up(self, lanes: Ints, numbers: Ints, blocks: Ints) -> Ints:
        """The sums before a block of a table, for each lane: int64 [lanes, columns]."""
        sums = np.empty((len(lanes), self._tables.num_columns), np.int64)
        for number in np.unique(numbers).tolist():
            own = numbers == number
            sums[own] = self._tables[number][blocks[own], lanes[own]]
        return sums

    def find(self, lanes: Ints, numbers: Ints, targets: Ints) -> tuple[Ints, Ints, Ints]:
        """Find each lane's cursor after the target unit, which is in the lane's table.

        Returns the cursors' ordinals, int64 [lanes]; the units of each cursor's document before the
        cursor, int64 [lanes]; and the sums of the table before that document, [lanes, columns].
        """
        blocks = np.empty(len(lanes), np.int64)
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            blocks[own] = _bisect(self._tables[number], lanes[own], targets[own])
        sums = self._look_up(lanes, numbers, blocks)
        found = self._measure_block(lanes, numbers, blocks)
        places, into, _ = self.find_within(found, targets - sums[:, UNITS])
        ordinals = numbers * self._tables.num_ordinals + blocks * self._tables.block + places
        return ordinals, into, sums + self.sum_first(found, places)

    def find_within(self, found: DocumentSizes, targets: Ints) -> tuple[Ints, Ints, Ints]:
        """Find each lane's cursor after the target unit, among measured documents.

        `found` has the shape [lanes, documents]. Returns, as int64 [lanes] each, the number of
        documents that end before the cursor, the number of units between the start of the next
        document and the cursor, and the number of all units before the cursor. If the target is
        beyond the documents, the cursor is after all of them.
        """
        units = units_of(self._packing, found.sizes)
        ends = np.cumsum(units, axis=1)
        places = (ends < targets[:, None]).sum(axis=1)
        is_here = places < ends.shape[1]
        last = np.minimum(places, ends.shape[1] - 1)[:, None]
        ends_here = np.take_along_axis(ends, last, axis=1)[:, 0]
        units_here = np.take_along_axis(units, last, axis=1)[:, 0]
        is_inside = is_here & (ends_here > targets)
        into = np.where(is_inside, targets - ends_here + units_here, 0)
        return places + (is_here & ~is_inside), into, np.minimum(ends_here, targets)

    def _measure_block(self, lanes: Ints, numbers: Ints, blocks: Ints) -> DocumentSizes:
        """Measure the documents of a block of a table, for each lane: [lanes, block]."""
        within = blocks[:, None] * self._tables.block + np.arange(self._tables.block)
        within = np.minimum(within, self._tables.num_ordinals - 1)  # fill with the last ordinal
        ordinals = numbers[:, None] * self._tables.num_ordinals + within
        return self._sizes.measure(np.broadcast_to(lanes[:, None], within.shape), ordinals)

    def sum_first(self, found: DocumentSizes, places: Ints) -> Ints:
        """Sum the columns of the first `places` documents of each lane: [lanes, columns]."""
        is_before = np.arange(found.sizes.shape[1]) < places[:, None]
        return self._tables.sum_columns(found, lambda column: (column * is_before).sum(axis=1))


def _bisect(table: Ints, lanes: Ints, targets: Ints) -> Ints:
    """The last block of each lane that has fewer units before it than the target: int64 [lanes]."""
    low, high = np.zeros(len(lanes), np.int64), np.full(len(lanes), len(table) - 1)
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_below = table[middle, lanes, UNITS] < targets
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return low
