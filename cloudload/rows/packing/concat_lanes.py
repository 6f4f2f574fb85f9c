"""Pack many `concat` lanes at once: the vectorized twin of `_ConcatPacker`.

    lane 0   aaaabbbbbbbcc        all tokens of a lane, document after document
             ├────┼────┼──        cut every seq_len = 5 tokens; one `b` and `cc` wait

The reference packer (`packers`) is the specification. Tests compare every row, cursor and count.
"""

from __future__ import annotations

import numpy as np

from cloudload.rows.packing.lane_packer import CutRows, copy_tokens
from cloudload.rows.packing.packers import check_start
from cloudload.rows.packing.tables import (
    BASE,
    BUFFER,
    COUNT,
    COUNTED_ROW,
    COUNTED_STREAM,
    CURSOR_OFFSET,
    CURSOR_ORDINAL,
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    PIECE_DOCUMENT,
    PIECE_ROW,
    PIECE_START,
    PIECE_STOP,
    SIZE,
    START,
    STREAM,
    Documents,
    document_keys,
)
from cloudload.system import Flags, Ints, count_within


class ConcatLanes:
    """Lanes whose tokens fill rows in order, so documents can span rows; see `LaneRows`.

    `cursors` is int64 [flat_lanes, 2].
    """

    def __init__(self, seq_len: int, num_lanes: int, cursors: Ints) -> None:
        self._seq_len, self._num_lanes = seq_len, num_lanes
        self._cursors = cursors
        self._available = np.zeros(len(cursors), np.int64)
        """Number of tokens added to each lane that are not in a row yet."""
        self._tables: list[Ints | None] = [None] * len(cursors)
        self._tokens: list[memoryview] = [memoryview(b"")] * len(cursors)
        self._added: list[Documents] = []
        """Documents added since the last cut. Each call of `add` adds one item, whose buffer
        contains tokens of many lanes."""

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        return flat_lanes[:0], flat_lanes[:0]

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        return np.maximum(0, wanted * self._seq_len - self._available[flat_lanes])

    def add(self, documents: Documents, has_begun: Flags) -> None:
        table = documents.table
        for index in np.flatnonzero(has_begun).tolist():
            flat_lane, ordinal, size = table[index, [FLAT_LANE, ORDINAL, SIZE]].tolist()
            expected, offset = self._cursors[flat_lane].tolist()
            try:
                check_start(expected, offset, ordinal, size)
            except ValueError as error:
                raise ValueError(f"lane {flat_lane % self._num_lanes}: {error}") from None
            table[index, START] = offset
        np.add.at(self._available, table[:, FLAT_LANE], table[:, SIZE] - table[:, START])
        self._added.append(documents)

    def cut(self, flat_lanes: Ints, wanted: Ints) -> CutRows:
        """See `LaneRows`.

        Example: seq_len is 5, and one lane has documents of 4, 7 and 2 tokens, which start at
        tokens 0, 4 and 11 of the lane. Two rows take 4, 6 and 0 tokens of the three documents. The
        cursor is then (1, 6), and document 0 is counted with row 0.
        """
        table, buffers = self._gather(flat_lanes)
        lanes = np.searchsorted(flat_lanes, table[:, FLAT_LANE])
        # tokens before `START` are already in rows
        left = table[:, SIZE] - table[:, START]
        # documents are ordered by lane, so one sum over all of them gives offsets in every lane,
        # once the base of the lane is subtracted
        ends = np.concatenate([[0], np.cumsum(left)])
        bases = ends[np.searchsorted(lanes, np.arange(len(flat_lanes) + 1))]
        # only whole rows are cut, because the lane's next documents continue the tokens after them
        num_rows: Ints = np.minimum(wanted, np.diff(bases) // self._seq_len)
        # a document is tokens [starts, starts + left) of its lane, and rows take those before
        # `taken`: all of them, some, or none if the document begins after the last row
        starts = ends[:-1] - bases[lanes]
        most = (num_rows * self._seq_len)[lanes]
        taken = np.clip(starts + left, starts, np.maximum(starts, most))
        # rows are numbered across lanes, so a lane's rows follow those of the lanes before it
        first_rows = (np.cumsum(num_rows) - num_rows)[lanes]
        pieces = _cut_pieces(table, starts, taken, first_rows, self._seq_len)

        row_lanes = np.repeat(np.arange(len(flat_lanes)), num_rows)
        cursors = _cursors_after(table, pieces, len(row_lanes))
        # a document without tokens has no piece, so the cursor tells which documents are read
        counted_rows = _first_rows_past(table, lanes, cursors, row_lanes)
        is_counted = counted_rows < len(row_lanes)
        counted = np.empty((np.count_nonzero(is_counted), 4), np.int64)
        counted[:, COUNTED_ROW] = counted_rows[is_counted]
        counted[:, COUNTED_STREAM:] = table[is_counted][:, [STREAM, COUNT, SIZE]]

        # all other documents wait for the next cut, and rows may have begun the first of each lane
        rest = table[~is_counted]
        rest[:, START] += (taken - starts)[~is_counted]
        self._available[flat_lanes] = np.diff(bases) - num_rows * self._seq_len
        self._keep(flat_lanes, rest, lanes[~is_counted], buffers)
        return CutRows(num_rows, table, buffers, pieces, cursors, None, counted)

    def _gather(self, flat_lanes: Ints) -> tuple[Ints, list[memoryview]]:
        """Gather the documents of lanes, ordered by lane, and the buffers of their tokens.

        `flat_lanes` must include all lanes that have new documents.
        """
        added, self._added = self._added, []
        tables = [
            (flat_lane, table)
            for flat_lane in flat_lanes.tolist()
            if (table := self._tables[flat_lane]) is not None
        ]
        buffers = [documents.ids.data for documents in added] + [
            self._tokens[flat_lane] for flat_lane, _ in tables
        ]
        parts = [documents.table for documents in added] + [table for _, table in tables]
        if not parts:
            return np.empty((0, NUM_DOCUMENT_COLUMNS), np.int64), buffers
        joined = np.concatenate(parts)
        joined[:, BUFFER] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        if len(parts) > 1:
            keys = document_keys(joined[:, FLAT_LANE], joined[:, ORDINAL])
            joined = joined[np.argsort(keys, kind="stable")]
        return joined, buffers

    def _keep(self, flat_lanes: Ints, rest: Ints, lanes: Ints, buffers: list[memoryview]) -> None:
        """Keep the remaining documents of each lane, with their tokens in one buffer per lane."""
        bounds = np.searchsorted(lanes, np.arange(len(flat_lanes) + 1)).tolist()
        froms = np.maximum(0, rest[:, BASE] + rest[:, START])
        stops = np.maximum(froms, rest[:, BASE] + rest[:, SIZE])
        lows, highs, of = froms.tolist(), stops.tolist(), rest[:, BUFFER].tolist()
        shifts = np.zeros(len(flat_lanes), np.int64)
        for lane, flat_lane in enumerate(flat_lanes.tolist()):
            first, stop = bounds[lane], bounds[lane + 1]
            if first == stop:
                self._tables[flat_lane], self._tokens[flat_lane] = None, memoryview(b"")
                continue
            self._tables[flat_lane] = rest[first:stop]
            if of[first] != of[stop - 1]:
                shifts[lane] = lows[first]
                self._tokens[flat_lane] = _join_buffers(
                    rest[first:stop], froms[first:stop], stops[first:stop], buffers
                )
            elif buffers[of[first]] is not self._tokens[flat_lane]:
                # copy, because a view would keep the tokens of all lanes alive
                shifts[lane] = lows[first]
                self._tokens[flat_lane] = copy_tokens(
                    buffers[of[first]], lows[first], max(highs[first:stop])
                )
        rest[:, BASE] -= shifts[lanes]


def _cut_pieces(table: Ints, starts: Ints, taken: Ints, first_rows: Ints, seq_len: int) -> Ints:
    """Cut documents at row boundaries into the pieces that rows take.

    Offsets count the waiting tokens of a lane, and a row ends at each multiple of `seq_len`. A
    document begins at its offset `starts`, and rows take its tokens up to the offset `taken`. The
    first row of the document's lane is `first_rows`. All three are int64 [documents], in the order
    of the document table `table`. Returns int64 [pieces, 4].

    Example: for seq_len 5, starts 0 4, and taken 4 10, the pieces (row, document, start, stop) are
    0 0 0 4 · 0 1 0 1 · 1 1 1 6.
    """
    cut = np.flatnonzero(taken > starts)
    firsts = starts[cut] // seq_len
    pieces_each = (taken[cut] - 1) // seq_len - firsts + 1
    documents = np.repeat(cut, pieces_each)
    rows = np.repeat(firsts, pieces_each) + count_within(pieces_each)
    # offsets in the document minus offsets in the lane
    shifts = table[documents, START] - starts[documents]
    pieces = np.empty((len(documents), 4), np.int64)
    pieces[:, PIECE_ROW] = rows + first_rows[documents]
    pieces[:, PIECE_DOCUMENT] = documents
    pieces[:, PIECE_START] = shifts + np.maximum(starts[documents], rows * seq_len)
    pieces[:, PIECE_STOP] = shifts + np.minimum(taken[documents], (rows + 1) * seq_len)
    return pieces


def _join_buffers(rest: Ints, froms: Ints, stops: Ints, buffers: list[memoryview]) -> memoryview:
    """Join the tokens of a lane's documents, which are in several buffers, into one buffer.

    Changes `BASE` in `rest` as if all documents followed the first one in its buffer.
    """
    parts: list[bytes] = []
    index = first = int(froms[0])
    for buffer in dict.fromkeys(rest[:, BUFFER].tolist()):
        own = rest[:, BUFFER] == buffer
        low = int(froms[own][0])
        part = buffers[buffer][low : int(stops[own].max())].tobytes()
        rest[own, BASE] += index - low
        parts.append(part)
        index += len(part) // 4
    assert index >= first
    return memoryview(b"".join(parts)).cast("i")


def _cursors_after(table: Ints, pieces: Ints, num_rows: int) -> Ints:
    """The cursor after each row, which is the end of the row's last piece: int64 [rows, 2]."""
    last = pieces[np.searchsorted(pieces[:, PIECE_ROW], np.arange(num_rows), side="right") - 1]
    is_end = last[:, PIECE_STOP] == table[last[:, PIECE_DOCUMENT], SIZE]
    cursors = np.empty((num_rows, 2), np.int64)
    cursors[:, CURSOR_ORDINAL] = table[last[:, PIECE_DOCUMENT], ORDINAL] + is_end
    cursors[:, CURSOR_OFFSET] = np.where(is_end, 0, last[:, PIECE_STOP])
    return cursors


def _first_rows_past(table: Ints, lanes: Ints, cursors: Ints, row_lanes: Ints) -> Ints:
    """For each document, the first row after which its lane's cursor is past the document.

    Returns int64 [documents]. The value is the number of rows if no row's cursor is past the
    document.
    """
    rows = np.searchsorted(
        document_keys(row_lanes, cursors[:, CURSOR_ORDINAL]),
        document_keys(lanes, table[:, ORDINAL]),
        side="right",
    )
    of_lane = np.append(row_lanes, -1)[rows] == lanes
    return np.where(of_lane, rows, len(row_lanes))
