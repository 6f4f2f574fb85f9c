"""The rows of many lanes: what each has read and not emitted, and the cutting of it into pieces of rows.

    lane 0    ···| a a a b b      c c c c          two rows wanted of seq_len 5     ─►  a a a b b | c c c c .
    lane 1         d d d d d d d  e                one row wanted                   ─►  d d d d d   and d d e wait

`ConcatLanes` cuts the rows of all lanes at once, in arrays. `PackerLanes` asks a packer for each lane, row by row: any packing,
and what `best_fit_lanes` does faster for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloudload.arrays import Flags, Ints, count_within
from cloudload.lane_documents import BASE, COUNT, FIELDS, ORDINAL, SIZE, SLOT, SOURCE, START, STREAM, Documents
from cloudload.pack import Cursor, Packer, Packing, residue_spans
from cloudload.rows import DOCUMENT, PIECE_STOP, ROW

_KEY_BITS = 40


@dataclass(frozen=True)
class CutRows:
    """Rows in pieces, lane after lane, and within a lane as they follow each other."""

    num_rows: Ints
    """int64 [lanes]: the rows that each lane gave; fewer than wanted where its end is reached."""
    table: Ints
    sources: Sequence[memoryview]
    pieces: Ints
    """int64 [pieces, 4], as `rows` has them."""
    cursors: Ints
    """int64 [rows, 2]: the lane's cursor after each row."""
    residues: Sequence[bytes] | None
    counted: Ints
    """int64 [documents, 4]: those of which nothing is left to read: the row they are counted with, stream, count and size."""


class LaneRows(Protocol):
    """Lanes by slot. Slots are given ascending, each once."""

    def unread(self, slots: Ints) -> tuple[Ints, Ints]:
        """(slots, ordinals) of documents that lanes hold, but whose tokens have to be read again."""
        ...

    def missing(self, slots: Ints, wanted: Ints) -> Ints:
        """The tokens that each lane is about to need for so many rows; 0 where it has the rows."""
        ...

    def add(self, documents: Documents, has_begun: Flags) -> None:
        """Take the next documents of lanes; for one that `has_begun`, the lane's first cursor says how far.

        Raises `ValueError`, which names the lane, where the cursor stands beyond its end.
        """
        ...

    def cut(self, slots: Ints, wanted: Ints) -> CutRows:
        """The next rows of lanes, of those documents alone that were added for them."""
        ...


class ConcatLanes:
    """Lanes whose documents run on over the ends of rows: a lane's tokens in order are its rows."""

    def __init__(self, seq_len: int, num_lanes: int, cursors: Ints) -> None:
        self._seq_len, self._num_lanes, self._offsets = seq_len, num_lanes, cursors[:, 1]
        self._available = np.zeros(len(cursors), np.int64)
        self._tables: list[Ints | None] = [None] * len(cursors)
        self._tokens: list[memoryview] = [memoryview(b"")] * len(cursors)
        self._added: list[Documents] = []

    def unread(self, slots: Ints) -> tuple[Ints, Ints]:
        return slots[:0], slots[:0]

    def missing(self, slots: Ints, wanted: Ints) -> Ints:
        return np.maximum(0, wanted * self._seq_len - self._available[slots])

    def add(self, documents: Documents, has_begun: Flags) -> None:
        table = documents.table
        if has_begun.any():
            offsets = self._offsets[table[:, SLOT]]
            for slot, ordinal, size, offset in zip(
                *table[has_begun][:, [SLOT, ORDINAL, SIZE]].T, offsets[has_begun], strict=True
            ):
                if offset > size:
                    raise ValueError(
                        f"lane {slot % self._num_lanes}: the cursor stands at token {offset} of document {ordinal}, "
                        f"but it has {size} tokens"
                    )
            table[has_begun, START] = offsets[has_begun]
        np.add.at(self._available, table[:, SLOT], table[:, SIZE] - table[:, START])
        self._added.append(documents)

    def cut(self, slots: Ints, wanted: Ints) -> CutRows:
        seq_len = self._seq_len
        table, sources = self._gather(slots)
        lanes = np.searchsorted(slots, table[:, SLOT])
        left = table[:, SIZE] - table[:, START]
        ends = np.concatenate([[0], np.cumsum(left)])
        bases = ends[np.searchsorted(lanes, np.arange(len(slots) + 1))]
        num_rows: Ints = np.minimum(wanted, np.diff(bases) // seq_len)
        # tokens [start, stop) of its lane are a document's, of which rows take those before `taken`
        starts = ends[:-1] - bases[lanes]
        taken = np.clip(starts + left, starts, np.maximum(starts, (num_rows * seq_len)[lanes]))

        cut = np.flatnonzero(taken > starts)
        first_rows = starts[cut] // seq_len
        pieces_each = (taken[cut] - 1) // seq_len - first_rows + 1
        documents = np.repeat(cut, pieces_each)
        rows = np.repeat(first_rows, pieces_each) + count_within(pieces_each)
        froms = table[documents, START] - starts[documents]
        pieces = np.empty((len(documents), 4), np.int64)
        pieces[:, ROW] = rows + (np.cumsum(num_rows) - num_rows)[lanes[documents]]
        pieces[:, DOCUMENT] = documents
        pieces[:, 2] = froms + np.maximum(starts[documents], rows * seq_len)
        pieces[:, 3] = froms + np.minimum(taken[documents], (rows + 1) * seq_len)

        row_lanes = np.repeat(np.arange(len(slots)), num_rows)
        cursors = _cursors_after(table, pieces, len(row_lanes))
        counted_rows = _first_rows_past(table, lanes, cursors, row_lanes)
        is_counted = counted_rows < len(row_lanes)
        counted = np.empty((np.count_nonzero(is_counted), 4), np.int64)
        counted[:, 0] = counted_rows[is_counted]
        counted[:, 1:] = table[is_counted][:, [STREAM, COUNT, SIZE]]

        rest = table[~is_counted]
        rest[:, START] += (taken - starts)[~is_counted]
        self._available[slots] = np.diff(bases) - num_rows * seq_len
        self._keep(slots, rest, lanes[~is_counted], sources)
        return CutRows(num_rows, table, sources, pieces, cursors, None, counted)

    def _gather(self, slots: Ints) -> tuple[Ints, list[memoryview]]:
        """The documents of lanes, lane after lane, and the buffers of their tokens."""
        added, self._added = self._added, []
        tables = [(slot, table) for slot in slots.tolist() if (table := self._tables[slot]) is not None]
        sources = [documents.ids.data for documents in added] + [self._tokens[slot] for slot, _ in tables]
        parts = [documents.table for documents in added] + [table for _, table in tables]
        if not parts:
            return np.empty((0, len(FIELDS)), np.int64), sources
        joined = np.concatenate(parts)
        joined[:, SOURCE] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        if len(parts) > 1:
            joined = joined[np.argsort(joined[:, SLOT] << _KEY_BITS | joined[:, ORDINAL], kind="stable")]
        return joined, sources

    def _keep(self, slots: Ints, rest: Ints, lanes: Ints, sources: list[memoryview]) -> None:
        """Hold the rest of each lane's documents, and their tokens in a buffer of the lane's own."""
        bounds = np.searchsorted(lanes, np.arange(len(slots) + 1)).tolist()
        froms = np.maximum(0, rest[:, BASE] + rest[:, START])
        stops = np.maximum(froms, rest[:, BASE] + rest[:, SIZE])
        lows, highs, of = froms.tolist(), stops.tolist(), rest[:, SOURCE].tolist()
        shifts = np.zeros(len(slots), np.int64)
        for lane, slot in enumerate(slots.tolist()):
            first, stop = bounds[lane], bounds[lane + 1]
            if first == stop:
                self._tables[slot], self._tokens[slot] = None, memoryview(b"")
                continue
            self._tables[slot] = rest[first:stop]
            if of[first] != of[stop - 1]:
                shifts[lane] = lows[first]
                self._tokens[slot] = _join_sources(rest[first:stop], froms[first:stop], stops[first:stop], sources)
            elif sources[of[first]] is not self._tokens[slot]:
                # a view would keep the tokens of all other lanes, too
                shifts[lane] = lows[first]
                self._tokens[slot] = _copy(sources[of[first]], lows[first], max(highs[first:stop]))
        rest[:, BASE] -= shifts[lanes]


def _copy(source: memoryview, start: int, stop: int) -> memoryview:
    return memoryview(source[start:stop].tobytes()).cast("i")


def _join_sources(rest: Ints, froms: Ints, stops: Ints, sources: list[memoryview]) -> memoryview:
    """The tokens of a lane's documents from several buffers, as if they stood from the first one's on."""
    parts: list[bytes] = []
    place = first = int(froms[0])
    for source in dict.fromkeys(rest[:, SOURCE].tolist()):
        own = rest[:, SOURCE] == source
        low = int(froms[own][0])
        part = sources[source][low : int(stops[own].max())].tobytes()
        rest[own, BASE] += place - low
        parts.append(part)
        place += len(part) // 4
    assert place >= first
    return memoryview(b"".join(parts)).cast("i")


def _cursors_after(table: Ints, pieces: Ints, num_rows: int) -> Ints:
    """The cursor after each row: behind its last piece."""
    last = pieces[np.searchsorted(pieces[:, ROW], np.arange(num_rows), side="right") - 1]
    is_end = last[:, PIECE_STOP] == table[last[:, DOCUMENT], SIZE]
    cursors = np.empty((num_rows, 2), np.int64)
    cursors[:, 0] = table[last[:, DOCUMENT], ORDINAL] + is_end
    cursors[:, 1] = np.where(is_end, 0, last[:, PIECE_STOP])
    return cursors


def _first_rows_past(table: Ints, lanes: Ints, cursors: Ints, row_lanes: Ints) -> Ints:
    """For each document, the first row after which its lane's cursor is past it; as many as there are rows where none is."""
    rows = np.searchsorted(row_lanes << _KEY_BITS | cursors[:, 0], lanes << _KEY_BITS | table[:, ORDINAL], side="right")
    of_lane = np.append(row_lanes, -1)[rows] == lanes
    return np.where(of_lane, rows, len(row_lanes))


# ---------------------------------------------------------------- any packing


class _PackerLane:
    """A lane, its packer, and the documents that rows have yet to take."""

    def __init__(self, packer: Packer, residue: dict[int, int]) -> None:
        self.packer = packer
        self.unread = residue
        """The sizes of documents that are packed, but have yet to be read again."""
        self.documents: dict[int, tuple[Ints, memoryview]] = {}
        self.uncounted: deque[tuple[int, int, int, int]] = deque()


class PackerLanes:
    """Lanes that each have a packer."""

    def __init__(self, packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None) -> None:
        self._packing, self._num_lanes, self._cursors, self._residues = packing, num_lanes, cursors, residues
        self._lanes: list[_PackerLane | None] = [None] * len(cursors)

    def _lane(self, slot: int) -> _PackerLane:
        lane = self._lanes[slot]
        if lane is None:
            cursor: Cursor = (int(self._cursors[slot, 0]), int(self._cursors[slot, 1]))
            residue = b"" if self._residues is None else self._residues[slot]
            try:
                packer = self._packing.packer(cursor, residue)
                unread = {ordinal: size for ordinal, _, size in residue_spans(residue, cursor[0])}
            except ValueError as error:
                raise ValueError(f"residues: lane {slot % self._num_lanes} has {error}") from None
            lane = self._lanes[slot] = _PackerLane(packer, unread)
        return lane

    def unread(self, slots: Ints) -> tuple[Ints, Ints]:
        keys = [(slot, ordinal) for slot in slots.tolist() for ordinal in self._lane(slot).unread]
        pairs = np.array(keys, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def missing(self, slots: Ints, wanted: Ints) -> Ints:
        short = np.zeros(len(slots), np.int64)
        for place, (slot, rows) in enumerate(zip(slots.tolist(), wanted.tolist(), strict=True)):
            packer = self._lane(slot).packer
            if len(packer.rows) < rows:
                short[place] = max(1, (rows - len(packer.rows)) * self._packing.seq_len - packer.num_pending)
        return short

    def add(self, documents: Documents, has_begun: Flags) -> None:
        table = documents.table
        for (slot, ordinal, stream, _, _, size, count, *_), document in zip(
            table.tolist(), own_documents(documents), strict=True
        ):
            lane = self._lane(slot)
            packed_size = lane.unread.pop(ordinal, None)
            try:
                if packed_size is None:
                    lane.packer.add(ordinal, size)
                    lane.uncounted.append((ordinal, stream, count, size))
                elif size != packed_size:
                    raise ValueError(f"document {ordinal} had {packed_size} tokens, and now has {size}")
            except ValueError as error:
                raise ValueError(f"lane {slot % self._num_lanes}: {error}") from None
            if size:
                lane.documents[ordinal] = document

    def cut(self, slots: Ints, wanted: Ints) -> CutRows:
        num_rows = np.zeros(len(slots), np.int64)
        tables: list[Ints] = []
        sources: list[memoryview] = []
        pieces: list[int] = []
        cursors: list[int] = []
        residues: list[bytes] = []
        counted: list[int] = []
        row = 0
        for place, (slot, rows) in enumerate(zip(slots.tolist(), wanted.tolist(), strict=True)):
            lane = self._lane(slot)
            num_rows[place] = number = min(rows, len(lane.packer.rows))
            for _ in range(number):
                packed = lane.packer.rows.popleft()
                for ordinal, start, stop, is_last in packed.pieces:
                    document, tokens = lane.documents.pop(ordinal) if is_last else lane.documents[ordinal]
                    pieces += row, len(tables), start, stop
                    tables.append(document)
                    sources.append(tokens)
                cursors += packed.cursor
                residues.append(packed.residue)
                while lane.uncounted and lane.uncounted[0][0] < packed.cursor[0]:
                    counted += (row, *lane.uncounted.popleft()[1:])
                row += 1
        table = np.concatenate(tables).reshape(-1, len(FIELDS)) if tables else np.empty((0, len(FIELDS)), np.int64)
        table[:, SOURCE] = np.arange(len(table))
        return CutRows(
            num_rows=num_rows,
            table=table,
            sources=sources,
            pieces=np.array(pieces, np.int64).reshape(-1, 4),
            cursors=np.array(cursors, np.int64).reshape(-1, 2),
            residues=residues if self._packing.has_residue else None,
            counted=np.array(counted, np.int64).reshape(-1, 4),
        )


def own_documents(documents: Documents) -> list[tuple[Ints, memoryview]]:
    """The row of the table, and the tokens, of each document: apart from those of all others."""
    table, source = documents.table.copy(), documents.ids.data
    froms = np.maximum(0, table[:, BASE])
    stops = np.maximum(froms, table[:, BASE] + table[:, SIZE])
    table[:, BASE] -= froms
    parts = [_copy(source, start, stop) for start, stop in zip(froms.tolist(), stops.tolist(), strict=True)]
    return list(zip(table, parts, strict=True))
