"""The rows of many `concat` lanes at once, in arrays: the vectorized twin of the `concat`
packer."""

from __future__ import annotations

import numpy as np

from cloudload.arrays import Flags, Ints, count_within
from cloudload.packing.lane_packer import CutRows, copy_tokens
from cloudload.packing.tables import (
    BASE,
    COUNT,
    DOCUMENT,
    FIELDS,
    ORDINAL,
    PIECE_STOP,
    ROW,
    SIZE,
    SLOT,
    SOURCE,
    START,
    STREAM,
    Documents,
)

_KEY_BITS = 40


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
                        f"lane {slot % self._num_lanes}: the cursor stands at token {offset} of "
                        f"document {ordinal}, "
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
        tables = [
            (slot, table) for slot in slots.tolist() if (table := self._tables[slot]) is not None
        ]
        sources = [documents.ids.data for documents in added] + [
            self._tokens[slot] for slot, _ in tables
        ]
        parts = [documents.table for documents in added] + [table for _, table in tables]
        if not parts:
            return np.empty((0, len(FIELDS)), np.int64), sources
        joined = np.concatenate(parts)
        joined[:, SOURCE] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        if len(parts) > 1:
            joined = joined[
                np.argsort(joined[:, SLOT] << _KEY_BITS | joined[:, ORDINAL], kind="stable")
            ]
        return joined, sources

    def _keep(self, slots: Ints, rest: Ints, lanes: Ints, sources: list[memoryview]) -> None:
        """Hold the rest of each lane's documents, and their tokens in a buffer of the lane's
        own."""
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
                self._tokens[slot] = _join_sources(
                    rest[first:stop], froms[first:stop], stops[first:stop], sources
                )
            elif sources[of[first]] is not self._tokens[slot]:
                # a view would keep the tokens of all other lanes, too
                shifts[lane] = lows[first]
                self._tokens[slot] = copy_tokens(
                    sources[of[first]], lows[first], max(highs[first:stop])
                )
        rest[:, BASE] -= shifts[lanes]


def _join_sources(rest: Ints, froms: Ints, stops: Ints, sources: list[memoryview]) -> memoryview:
    """The tokens of a lane's documents from several buffers, as if they stood from the first one's
    on."""
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
    """For each document, the first row after which its lane's cursor is past it; as many as there
    are rows where none is."""
    rows = np.searchsorted(
        row_lanes << _KEY_BITS | cursors[:, 0], lanes << _KEY_BITS | table[:, ORDINAL], side="right"
    )
    of_lane = np.append(row_lanes, -1)[rows] == lanes
    return np.where(of_lane, rows, len(row_lanes))
