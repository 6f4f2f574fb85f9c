"""Locate any row of a lane with tables of sums over the lane's documents.

    lane 3      documents 0 … 255   256 … 511   512 … 767      sizes, from lengths and the order
    table       0                   t(256)      t(512) …       units and statistics before a block

    search      totals: passed whole ─► bisection: the block ─► scan: the document with the unit

A **unit** is a row with `one_per_row`, otherwise a token. A table covers the same ordinals in all
lanes: one epoch, or several small epochs. The processes of a node share the tables as files, so the
totals of past epochs are available without the orders of these epochs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.errors import CacheError
from cloudload.rows import Packing
from cloudload.run.lengths.sizes import DocumentSizes, LaneSizes, list_counts
from cloudload.stats import COUNTS
from cloudload.system import NEVER, Flags, Ints, child_processes, verified_files

_MOST_BLOCK = 256
UNITS = 0
"""The column of units. The columns after it are the statistics of the component's streams, one
stream after another."""
ENOUGH_ORDINALS, _MOST_EPOCHS = 1024, 16
KEPT_FROM_POSITIONS = 1 << 16  # below this, building a table is as fast as reading its file
# below this, building a table is faster than starting a process
BACKGROUND_FROM_POSITIONS = 1 << 20
_KEPT_TABLES = 4
_DOCUMENTS_AT_ONCE = 1 << 20


class LaneTables:
    """The tables of a component's lanes. `digest` identifies the lengths of all samples."""

    def __init__(self, folder: Path, sizes: LaneSizes, packing: Packing, digest: str) -> None:
        self._arguments = folder.absolute(), sizes, packing, digest
        self.sizes, self.packing = sizes, packing
        self._division = division = sizes.component.lanes
        self.folder = folder / self._identify(digest)
        self.num_lanes = division.num_lanes
        epochs = _MOST_EPOCHS * division.stride // division.num_lanes
        of_epoch = max(1, division.stride // division.num_lanes)
        self.num_ordinals = max(of_epoch, min(epochs, -(-ENOUGH_ORDINALS // of_epoch) * of_epoch))
        """Number of ordinals that a table covers."""
        self.block = min(_MOST_BLOCK, self.num_ordinals)
        """Number of documents of a lane between two consecutive sums."""
        self._tables: dict[int, Ints] = {}
        self._totals: dict[int, Ints] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return LaneTables, self._arguments

    def _identify(self, digest: str) -> str:
        component, packing, framing = self.sizes.component, self.packing, self.sizes.framing
        is_of_rows = packing.name == "one_per_row"
        rows = [packing.seq_len, packing.overflow] if is_of_rows else []
        facts = [
            *(digest, asdict(component.order), asdict(component.lanes)),
            asdict(component.sampling) if component.sampling else None,
            hashlib.sha256(np.ascontiguousarray(component.shard_sizes).tobytes()).hexdigest(),
            *(component.first_sample, framing.num_framing.tolist(), self.sizes.min_tokens),
            # best_fit and concat share tables, because their sums over tokens are the same
            *(packing.name if is_of_rows else "concat", rows),
            *([component.order_ids] if component.order_ids else []),
            *([{"max_tokens": self.sizes.max_tokens}] if self.sizes.max_tokens < NEVER else []),
            *([{"multiple": framing.multiple}] if framing.multiple > 1 else []),
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def is_kept(self) -> bool:
        """Whether the tables are kept in files."""
        return self._division.num_positions >= KEPT_FROM_POSITIONS

    @property
    def streams(self) -> range:
        """The streams whose statistics are in the tables."""
        return self.sizes.component.streams

    @cached_property
    def ends(self) -> Ints:
        """The ordinal at which each lane ends: int64 [lanes]; `NEVER` in an endless run."""
        return self._division.ends

    @cached_property
    def end(self) -> int | None:
        """The number of tables of a finite run; None if it is endless."""
        if self._division.epochs is None:
            return None
        return -(-int(self.ends.max()) // self.num_ordinals)

    def is_barren(self, count: Ints) -> Flags:
        """Whether endless lanes with `count` tables in a row without tokens count as having none.

        See `LaneSizes.is_barren`.
        """
        return self.sizes.is_barren(count * self.num_ordinals)

    def is_ready(self, index: int) -> bool:
        """Whether a table is in memory or in its file."""
        return index in self._tables or verified_files.has_unmodified(self._path(index))

    def totals(self, index: int) -> Ints:
        """The totals of table `index`: int64 [lanes, columns]. Raises the errors of `[index]`."""
        totals = self._totals.get(index)
        if totals is None:
            totals = self._totals[index] = self[index][-1].copy()
        return totals

    def __getitem__(self, index: int) -> Ints:
        """Table `index`: int64 [blocks + 1, lanes, columns]. The last entry has the totals.

        Raises `CacheError` if an order or the table cannot be built or written.
        """
        table = self._tables.get(index)
        if table is None:
            table = self._open(index) if self.is_kept else self._build(index)
            # replace the dict instead of changing it, because other threads may read it
            kept = list(self._tables.items())[1 - _KEPT_TABLES :]
            self._tables = {**dict(kept), index: table}
        return table

    def build_in_background(self, epoch: int) -> bool:
        """Start a process that builds the table with an epoch's start, and return immediately.

        The process also builds the order of the epoch, or waits for it. Returns whether a process
        was started. Does nothing if the table exists, is being built, is cheap to build, or is
        after the end of a finite run. If the process fails or cannot start, `[index]` builds the
        table.
        """
        index = epoch * self._division.stride // self.num_lanes // self.num_ordinals
        is_cheap = self._division.num_positions < BACKGROUND_FROM_POSITIONS
        if is_cheap or index >= (self.end or NEVER) or self.is_ready(index):
            return False
        path = self._path(index)
        return child_processes.run_detached(partial(self.build, index), path, f"{path}")

    def build(self, index: int) -> None:
        """Write a table to its file, unless the file is complete. The caller must hold the file's
        lock.

        Raises `OSError` if the file cannot be written, and `CacheError` if an order cannot be
        built.
        """
        path = self._path(index)
        if not verified_files.has_unmodified(path):
            table = self._build(index)
            with verified_files.open_verified(path) as file:
                file.write(table.data)

    def _open(self, index: int) -> Ints:
        path = self._path(index)
        try:
            verified_files.build_once(path, partial(self.build, index), f"build {path}")
            flat = np.memmap(path, np.int64, "r").view(np.ndarray)
        except OSError as error:
            raise CacheError(
                f"cannot write a table of token lengths to {path}: {error}. Free disk space, or "
                "set `local` to a different folder"
            ) from error
        return flat.reshape(-1, self.num_lanes, self.num_columns)

    def _path(self, index: int) -> Path:
        return self.folder / f"table-{index}.int64"

    @property
    def num_columns(self) -> int:
        """Number of columns of a table: the units, and the statistics of each stream."""
        return 1 + len(self.streams) * len(COUNTS)

    def _build(self, index: int) -> Ints:
        blocks = -(-self.num_ordinals // self.block)
        table = np.zeros((blocks + 1, self.num_lanes, self.num_columns), np.int64)
        step = max(1, _DOCUMENTS_AT_ONCE // (self.block * self.num_lanes))
        for block in range(0, blocks, step):
            stop = min(blocks, block + step)
            table[block + 1 : stop + 1] = self._sum_blocks(index, block, stop)
        return np.cumsum(table, axis=0)

    def _sum_blocks(self, index: int, block: int, stop: int) -> Ints:
        within = np.arange(block * self.block, min(stop * self.block, self.num_ordinals))
        lanes, ordinals = np.meshgrid(np.arange(self.num_lanes), index * self.num_ordinals + within)
        starts = np.arange(0, len(within), self.block)
        return self.sum_columns(
            self.sizes.measure(lanes, ordinals),
            lambda column: np.add.reduceat(column, starts, axis=0),
        )

    def sum_columns(self, found: DocumentSizes, reduce: Callable[[Ints], Ints]) -> Ints:
        """Compute the columns of a table from documents: int64 [.., columns].

        `reduce` sums the amounts of one column over the documents, and determines the shape.
        """
        sums = [reduce(self.packing.units_of(found.tokens))]
        counts = list_counts(self.packing, found)
        for stream in self.streams:
            is_own = found.streams == stream
            sums += [reduce(each if len(self.streams) == 1 else each * is_own) for each in counts]
        return np.stack(sums, axis=-1)


class TableSearch:
    """Searches the tables of one component's lanes.

    In all methods, `table_indices[i]` is the index of a table for lane `lanes[i]`, and `within[i]`
    is the index of a document of that lane within the table.
    """

    def __init__(self, tables: LaneTables) -> None:
        self._tables, self._sizes, self._packing = tables, tables.sizes, tables.packing

    def sums_since(self, first: int, lanes: Ints, ordinals: Ints) -> Ints:
        """The sums of each lane from the start of table `first` to a document: [lanes, columns]."""
        table_indices, within = np.divmod(ordinals, self._tables.num_ordinals)
        sums = self.sums_before(lanes, table_indices, within)
        for index in range(first, int(table_indices.max(initial=first))):
            sums += self._tables.totals(index)[lanes] * (index < table_indices)[:, None]
        return sums

    def sums_before(self, lanes: Ints, table_indices: Ints, within: Ints) -> Ints:
        """The sums of a table before its document `within`, for each lane: [lanes, columns]."""
        blocks, indices = np.divmod(within, self._tables.block)
        found = self._measure_block(lanes, table_indices, blocks)
        return self._look_up(lanes, table_indices, blocks) + self.sum_first(found, indices)

    def pass_tables(self, lanes: Ints, table_indices: Ints, targets: Ints, sums: Ints) -> Flags:
        """Advance each lane past the tables that end before its target unit.

        Changes `table_indices` to the tables that contain the targets, makes `targets` relative to
        these tables, and adds the totals of the passed tables to `sums`. Returns which lanes are
        dry: bool [lanes].
        """
        is_dry, barren = np.zeros(len(lanes), np.bool_), np.zeros(len(lanes), np.int64)
        while (short := self._find_short(lanes, table_indices, targets, is_dry)).size:
            totals = self._totals(lanes[short], table_indices[short])
            sums[short] += totals
            targets[short] -= totals[:, UNITS]
            table_indices[short] += 1
            # an endless lane without tokens would never reach its target
            barren[short] = np.where(totals[:, UNITS] == 0, barren[short] + 1, 0)
            is_dry |= self._tables.is_barren(barren)
            if self._tables.end is not None:
                is_dry |= table_indices >= self._tables.end
        return is_dry

    def _find_short(self, lanes: Ints, table_indices: Ints, targets: Ints, is_dry: Flags) -> Ints:
        """The lanes, as indices, whose target is beyond their current table."""
        totals = self._totals(lanes, np.where(is_dry, 0, table_indices))[:, UNITS]
        return np.flatnonzero((targets > totals) & ~is_dry)

    def _totals(self, lanes: Ints, table_indices: Ints) -> Ints:
        sums = np.empty((len(lanes), self._tables.num_columns), np.int64)
        for index in np.unique(table_indices).tolist():
            own = table_indices == index
            sums[own] = self._tables.totals(index)[lanes[own]]
        return sums

    def _look_up(self, lanes: Ints, table_indices: Ints, blocks: Ints) -> Ints:
        """The sums before a block of a table, for each lane: int64 [lanes, columns]."""
        sums = np.empty((len(lanes), self._tables.num_columns), np.int64)
        for index in np.unique(table_indices).tolist():
            own = table_indices == index
            sums[own] = self._tables[index][blocks[own], lanes[own]]
        return sums

    def find(self, lanes: Ints, table_indices: Ints, targets: Ints) -> tuple[Ints, Ints, Ints]:
        """Find each lane's cursor after the target unit, which is in the lane's table.

        Returns the cursors' ordinals, int64 [lanes]; the units of each cursor's document before the
        cursor, int64 [lanes]; and the sums of the table before that document, [lanes, columns].
        """
        blocks = np.empty(len(lanes), np.int64)
        for index in np.unique(table_indices).tolist():
            own = np.flatnonzero(table_indices == index)
            blocks[own] = _bisect(self._tables[index], lanes[own], targets[own])
        sums = self._look_up(lanes, table_indices, blocks)
        found = self._measure_block(lanes, table_indices, blocks)
        indices, into, _ = self.find_within(found, targets - sums[:, UNITS])
        ordinals = table_indices * self._tables.num_ordinals + blocks * self._tables.block + indices
        return ordinals, into, sums + self.sum_first(found, indices)

    def find_within(self, found: DocumentSizes, targets: Ints) -> tuple[Ints, Ints, Ints]:
        """Find each lane's cursor after the target unit, among measured documents.

        `found` has the shape [lanes, documents]. Returns, as int64 [lanes] each, the number of
        documents that end before the cursor, the number of units between the start of the next
        document and the cursor, and the number of all units before the cursor. If the target is
        beyond the documents, the cursor is after all of them.
        """
        units = self._packing.units_of(found.tokens)
        ends = np.cumsum(units, axis=1)
        # the first document that ends at or after the target contains it
        indices = (ends < targets[:, None]).sum(axis=1)
        # if there is none, look at the last document, and leave the cursor after it
        is_here = indices < ends.shape[1]
        last = np.minimum(indices, ends.shape[1] - 1)[:, None]
        ends_here = np.take_along_axis(ends, last, axis=1)[:, 0]
        units_here = np.take_along_axis(units, last, axis=1)[:, 0]
        # a document that ends exactly at the target is done, so the cursor is at the next one
        is_inside = is_here & (ends_here > targets)
        into = np.where(is_inside, targets - ends_here + units_here, 0)
        return indices + (is_here & ~is_inside), into, np.minimum(ends_here, targets)

    def _measure_block(self, lanes: Ints, table_indices: Ints, blocks: Ints) -> DocumentSizes:
        """Measure the documents of a block of a table, for each lane: [lanes, block]."""
        within = blocks[:, None] * self._tables.block + np.arange(self._tables.block)
        within = np.minimum(within, self._tables.num_ordinals - 1)  # fill with the last ordinal
        ordinals = table_indices[:, None] * self._tables.num_ordinals + within
        return self._sizes.measure(np.broadcast_to(lanes[:, None], within.shape), ordinals)

    def sum_first(self, found: DocumentSizes, indices: Ints) -> Ints:
        """Sum the columns of the first `indices` documents of each lane: [lanes, columns]."""
        is_before = np.arange(found.tokens.shape[1]) < indices[:, None]
        return self._tables.sum_columns(found, lambda column: (column * is_before).sum(axis=1))


def _bisect(table: Ints, lanes: Ints, targets: Ints) -> Ints:
    """The last block of each lane that has fewer units before it than the target: int64 [lanes]."""
    low, high = np.zeros(len(lanes), np.int64), np.full(len(lanes), len(table) - 1)
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_below = table[middle, lanes, UNITS] < targets
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return low
