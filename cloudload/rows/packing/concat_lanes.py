"""Pack many `concat` or `one_per_row` lanes at once: the vectorized twin of their packers.

    concat        aaaabbbbbbbcc          all tokens of a lane, document after document
                  ├────┼────┼──          cut every seq_len = 5 tokens; one `b` and `cc` wait
    one_per_row   aaaa.bbbbbbb...cc...   the same, with documents that are padded to whole rows
                  ├────┼────┼────┼────

The reference packer (`packers`) is the specification. Tests compare every row, cursor and count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.packing.lane_packer import copy_tokens, start_lanes
from cloudload.rows.packing.packers import Packing
from cloudload.system import Flags, Ints


class ConcatLanes:
    """Lanes whose documents lie on a line that is cut into rows; see `LaneRows`.

    The `packing` has no residue. `cursors` is int64 [flat_lanes, 2].
    """

    def __init__(self, packing: Packing, num_lanes: int, cursors: Ints) -> None:
        self._packing, self._num_lanes = packing, num_lanes
        self._seq_len = packing.seq_len
        self._row_tokens = self._seq_len // packing.row_units
        """Number of tokens that the line has for each unit."""
        self._starts = cursors.copy()
        """See `start_lanes`."""
        self._available = np.zeros(len(cursors), np.int64)
        """Number of units added to each lane that are not in a row yet."""
        self._kept: list[tables.ReadDocuments | None] = [None] * len(cursors)
        """The documents of each lane whose tokens wait, in one buffer per lane."""
        self._added: list[tables.ReadDocuments] = []
        """Documents added since the last cut. Each call of `add` adds one item, whose buffers
        contain tokens of many lanes."""

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        return flat_lanes[:0], flat_lanes[:0]

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        needed = wanted * self._packing.row_units - self._available[flat_lanes]
        return np.maximum(0, needed * self._row_tokens)

    def add(self, documents: tables.ReadDocuments) -> None:
        table = documents.table
        start_lanes(table, self._starts, self._num_lanes)
        np.add.at(
            self._available,
            table[:, tables.FLAT_LANE],
            self._packing.units_of(table[:, tables.SIZE] - table[:, tables.START]),
        )
        self._added.append(documents)

    def cut(self, flat_lanes: Ints, wanted: Ints) -> tables.CutRows:
        """See `LaneRows`.

        Example: with `concat`, seq_len is 5, and one lane has documents of 4, 7 and 2 tokens, which
        start at tokens 0, 4 and 11 of the lane. Two rows take 4, 6 and 0 tokens of the three
        documents. The cursor is then (1, 6), and document 0 is counted with row 0.
        """
        documents = self._gather(flat_lanes)
        table = documents.table
        lanes = np.searchsorted(flat_lanes, table[:, tables.FLAT_LANE])
        # tokens before `START` are already in rows
        left = table[:, tables.SIZE] - table[:, tables.START]
        # documents are ordered by lane, so one sum over all of them gives offsets in every lane,
        # once the base of the lane (the units of the lanes before it) is subtracted
        ends = np.concatenate([[0], np.cumsum(self._packing.units_of(left))])
        bases = ends[np.searchsorted(lanes, np.arange(len(flat_lanes) + 1))]
        # only whole rows are cut, because the lane's next documents continue the tokens after them
        num_rows: Ints = np.minimum(wanted, np.diff(bases) // self._packing.row_units)
        # a document is tokens [starts, stops) of its lane's line, and rows take those before
        # `taken`: all of them, some, or none if the document begins after the last row
        starts = (ends[:-1] - bases[lanes]) * self._row_tokens
        stops = starts + (np.minimum(left, self._seq_len) if self._packing.cuts else left)
        taken = np.clip(stops, starts, np.maximum(starts, (num_rows * self._seq_len)[lanes]))
        # rows are numbered across lanes, so a lane's rows follow those of the lanes before it
        first_rows = (np.cumsum(num_rows) - num_rows)[lanes]
        pieces = tables.cut_pieces(starts, taken, self._seq_len)
        # rows so far are those of the lane, and tokens are offsets in the lane
        _move_pieces(pieces, first_rows, table[:, tables.START] - starts)

        row_lanes = np.repeat(np.arange(len(flat_lanes)), num_rows)
        cursors = _cursors_after(table, pieces, len(row_lanes), cuts=self._packing.cuts)
        counted, is_left = _count_passed(table, lanes, cursors, row_lanes)
        # documents that are not counted wait, and rows may have begun the first of each lane
        rest = table[is_left]
        rest[:, tables.START] += (taken - starts)[is_left]
        self._available[flat_lanes] = np.diff(bases) - num_rows * self._packing.row_units
        self._keep(flat_lanes, rest, lanes[is_left], documents.buffers)
        return tables.CutRows(documents, pieces, counted, num_rows, cursors)

    def _gather(self, flat_lanes: Ints) -> tables.ReadDocuments:
        """Gather the documents of lanes, ordered by lane.

        `flat_lanes` must include all lanes that have new documents.
        """
        added, self._added = self._added, []
        kept = [self._kept[flat_lane] for flat_lane in flat_lanes.tolist()]
        parts = added + [documents for documents in kept if documents is not None]
        joined = tables.join_documents(parts)
        if len(parts) <= 1:
            return joined
        table = joined.table
        in_order = np.argsort(tables.keys_of(table), kind="stable")
        return tables.ReadDocuments(table[in_order], joined.buffers)

    def _keep(
        self, flat_lanes: Ints, rest: Ints, lanes: Ints, buffers: Sequence[memoryview]
    ) -> None:
        """Keep the remaining documents of each lane, with their tokens in one buffer per lane."""
        bounds = np.searchsorted(lanes, np.arange(len(flat_lanes) + 1)).tolist()
        # the tokens that a document still needs are in [froms, stops) of its buffer. As bos and eos
        # are not in the buffer, the range may be one token too long on each side
        froms = np.maximum(0, rest[:, tables.BASE] + rest[:, tables.START])
        stops = np.maximum(froms, rest[:, tables.BASE] + rest[:, tables.SIZE])
        lows, highs, of = froms.tolist(), stops.tolist(), rest[:, tables.BUFFER].tolist()
        shifts = np.zeros(len(flat_lanes), np.int64)
        for lane, flat_lane in enumerate(flat_lanes.tolist()):
            first, stop = bounds[lane], bounds[lane + 1]
            if first == stop:
                self._kept[flat_lane] = None
                continue
            own, before, tokens = rest[first:stop], self._kept[flat_lane], buffers[of[first]]
            if of[first:stop].count(of[first]) < stop - first:
                tokens = _join_buffers(own, froms[first:stop], stops[first:stop], buffers)
            elif before is None or tokens is not before.buffers[0]:
                # copy, because a view would keep the tokens of all lanes alive
                shifts[lane] = low = min(lows[first:stop])
                tokens = copy_tokens(tokens, low, max(highs[first:stop]))
            self._kept[flat_lane] = tables.ReadDocuments(own, [tokens])
        rest[:, tables.BASE] -= shifts[lanes]
        rest[:, tables.BUFFER] = 0


def _move_pieces(pieces: Ints, rows: Ints, tokens: Ints) -> None:
    """Add to the rows and tokens of each document's pieces; both are int64 [documents]."""
    documents = pieces[:, tables.PIECE_DOCUMENT]
    pieces[:, tables.PIECE_ROW] += rows[documents]
    pieces[:, tables.PIECE_START :] += tokens[documents, None]


def _join_buffers(
    rest: Ints, froms: Ints, stops: Ints, buffers: Sequence[memoryview]
) -> memoryview:
    """Join the tokens of a lane's documents, which are in several buffers, into one buffer.

    The documents of a buffer stay together. Changes `BASE` in `rest` to refer to the joined buffer.
    """
    parts: list[bytes] = []
    index = 0
    for buffer in dict.fromkeys(rest[:, tables.BUFFER].tolist()):
        own = rest[:, tables.BUFFER] == buffer
        low = int(froms[own].min())
        part = buffers[buffer][low : int(stops[own].max())].tobytes()
        rest[own, tables.BASE] += index - low
        parts.append(part)
        index += len(part) // 4
    return memoryview(b"".join(parts)).cast("i")


def _cursors_after(table: Ints, pieces: Ints, num_rows: int, *, cuts: bool) -> Ints:
    """The cursor after each row, which is the end of the row's last piece: int64 [rows, 2].

    With `cuts`, the rest of the piece's document is dropped.
    """
    # pieces are sorted by row, so a row's last piece is right before the first one of a later row
    stops = np.searchsorted(pieces[:, tables.PIECE_ROW], np.arange(num_rows), side="right")
    last = pieces[stops - 1]
    documents = table[last[:, tables.PIECE_DOCUMENT]]
    # at the end of a document, the cursor is at the start of the next one
    is_end = (last[:, tables.PIECE_STOP] == documents[:, tables.SIZE]) | cuts
    cursors = np.empty((num_rows, 2), np.int64)
    cursors[:, tables.CURSOR_ORDINAL] = documents[:, tables.ORDINAL] + is_end
    cursors[:, tables.CURSOR_OFFSET] = np.where(is_end, 0, last[:, tables.PIECE_STOP])
    return cursors


def _count_passed(table: Ints, lanes: Ints, cursors: Ints, row_lanes: Ints) -> tuple[Ints, Flags]:
    """Count each document with the first row after which its lane's cursor is past the document.

    `lanes` is the lane of each document, and `row_lanes` that of each row. Returns the counted
    documents, int64 [documents, 4], and which documents no row's cursor is past, bool [documents].
    """
    # a document without tokens has no piece, so the cursor tells which documents are passed
    rows, is_passed = tables.find_rows_past(row_lanes, cursors, lanes, table[:, tables.ORDINAL])
    counted = np.empty((np.count_nonzero(is_passed), 4), np.int64)
    counted[:, tables.COUNTED_ROW] = rows[is_passed]
    columns = [tables.STREAM, tables.COUNT, tables.SIZE]
    counted[:, tables.COUNTED_STREAM :] = table[is_passed][:, columns]
    return counted, ~is_passed
