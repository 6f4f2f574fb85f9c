"""The open and complete rows of one `best_fit` lane: the sequential part of `BestFitLanes`.

A piece is encoded as bytes, which `BestFitLane` only concatenates. `BestFitLanes` encodes an index
into its table. Code that plays a lane from token lengths encodes the span instead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.packing.packers import BestFitPacker, Cursor, Packing
from cloudload.rows.packing.residue import (
    EMPTY_GROUP,
    SPAN_BYTES,
    decode_span,
    encode_residue,
    encode_spans,
    extend_group,
)
from cloudload.system import Ints, count_within

_PIECE_BYTES = 4
Row = tuple[int, int, bytes, bytes, bytes]
"""(ordinal, offset, residue, pieces, passed): the cursor and the residue after the row, the row's
pieces, and the last piece of each document that the cursor passes with this row. It is a plain
tuple, because the GC stops tracking tuples of ints and bytes when it first sees them."""


class BestFitLane:
    """The open rows of a lane, and the complete rows that the caller has not taken yet.

    Open rows are sorted by ascending free space, then by the time of their last change.
    """

    __slots__ = (
        *("_free", "_groups", "_least_ordinal", "_most_free", "_num_waiting", "_open_rows"),
        *("_passed", "_pieces", "_seq_len", "rows"),
    )

    def __init__(self, packing: Packing) -> None:
        self._seq_len, self._open_rows = packing.seq_len, packing.open_rows
        self._least_ordinal, self._most_free = packing.least_ordinal, packing.most_free
        self._num_waiting = 0
        """Number of documents in open rows."""
        self._free = array("i")
        self._pieces: list[bytes] = []
        self._groups: list[bytes] = []
        """Each open row, encoded as in a residue."""
        self._passed = b""
        self.rows: deque[Row] = deque()

    def restore(self, free: int, pieces: bytes, group: bytes) -> None:
        """Append an open row, which must have at least as much free space as the rows before it."""
        self._free.append(free)
        self._pieces.append(pieces)
        self._groups.append(group)
        self._num_waiting += len(group) // SPAN_BYTES

    def pack(self, piece: bytes, size: int, span: bytes, ordinal: int, offset: int) -> None:
        """Put the next piece into the fullest open row that has space for it, or into a new row.

        `size` is the piece's number of tokens, `span` is its span, encoded by `encode_spans`, and
        (ordinal, offset) is the cursor after it. An empty piece is put into no row.
        """
        if size == self._seq_len and len(self._free) == 1:
            self._end_single_row(*decode_span(span))
        # after the last piece of a document, the cursor is at the start of the next one
        if not offset:
            self._passed += piece
        # a full piece is a whole row, and an empty piece belongs to no row
        if size == self._seq_len:
            self._emit(ordinal, offset, piece)
        if not 0 < size < self._seq_len:
            return
        # open rows ascend by free space, so the first one that has enough is the fullest
        free = self._free
        index = bisect_left(free, size)
        if index == len(free):
            left, pieces, group = self._seq_len - size, piece, EMPTY_GROUP
        else:
            left, pieces, group = (
                free.pop(index) - size,
                self._pieces.pop(index) + piece,
                self._groups.pop(index),
            )
        if left:
            # behind open rows with the same free space, which changed before this one
            index = bisect_right(free, left)
            free.insert(index, left)
            self._pieces.insert(index, pieces)
            self._groups.insert(index, extend_group(group, span))
            waiting = self._num_waiting = self._num_waiting + 1
            if len(free) <= self._open_rows and (
                waiting * waiting <= ordinal - self._least_ordinal or len(free) == 1
            ):
                return
            # too many rows or documents wait, so emit the fullest row
            del free[0]
            pieces, group = self._pieces.pop(0), self._groups.pop(0)
        self._num_waiting -= len(group) // SPAN_BYTES
        self._emit(ordinal, offset, pieces)

    def _end_single_row(self, ordinal: int, start: int, _: int) -> None:
        """End the only open row, because the first row of a long document begins at `start`."""
        num_read = ordinal - self._least_ordinal
        if not start and self._free[0] <= self._most_free and 4 * self._num_waiting**2 > num_read:
            self._num_waiting = 0
            self._free.pop()
            self._groups.pop()
            self._emit(ordinal, 0, self._pieces.pop())

    def _emit(self, ordinal: int, offset: int, pieces: bytes) -> None:
        residue = EMPTY_GROUP + b"".join(self._groups) if self._groups else b""
        self.rows.append((ordinal, offset, residue, pieces, self._passed))
        self._passed = b""


def restore_lane(
    packing: Packing, cursor: Cursor, residue: bytes, hold: Callable[[int, int, int], bytes]
) -> BestFitLane:
    """Restore a lane from its residue, which the reference packer decodes.

    `hold` returns the encoding of a piece (ordinal, start, stop). Raises `ValueError` for an
    invalid residue.
    """
    lane = BestFitLane(packing)
    if not residue:
        return lane
    packer = BestFitPacker(packing, cursor, residue)
    for row in packer.rows:
        pieces = b"".join(hold(document, start, stop) for document, start, stop, _ in row.pieces)
        lane.rows.append((*row.cursor, row.residue, pieces, b""))
    for spans in packer.open_spans:
        free = packing.seq_len - sum(stop - start for _, start, stop in spans)
        lane.restore(free, b"".join(hold(*span) for span in spans), encode_residue(spans))
    return lane


def split_documents(table: Ints, seq_len: int) -> Ints:
    """Split documents into pieces of at most `seq_len` tokens.

    Returns a document table with a row for each piece, whose `START` is the start of the piece.
    """
    lefts = table[:, tables.SIZE] - table[:, tables.START]
    if lefts.max(initial=0) <= seq_len:
        return table
    # a document without tokens also has a piece, to be counted
    counts = np.maximum(1, -(-lefts // seq_len))
    pieces: Ints = np.repeat(table, counts, axis=0)
    pieces[:, tables.START] += seq_len * count_within(counts)
    return pieces


def find_stops(table: Ints, seq_len: int) -> Ints:
    """The end of each piece of `split_documents` in its document: int64 [pieces]."""
    return np.minimum(table[:, tables.SIZE], table[:, tables.START] + seq_len)


def list_packed(
    table: Ints, seq_len: int
) -> tuple[list[bytes], list[int], list[int], list[int], list[int]]:
    """List the arguments of `pack` for each piece of `split_documents`.

    Returns lists of the pieces' spans, flat lanes and sizes, and of the ordinal and the offset of
    the cursor after each piece.
    """
    stops = find_stops(table, seq_len)
    is_last = stops == table[:, tables.SIZE]
    return (
        encode_spans(np.stack([table[:, tables.ORDINAL], table[:, tables.START], stops], axis=1)),
        table[:, tables.FLAT_LANE].tolist(),
        (stops - table[:, tables.START]).tolist(),
        (table[:, tables.ORDINAL] + is_last).tolist(),
        np.where(is_last, 0, stops).tolist(),
    )


def encode_pieces(pieces: Ints) -> list[bytes]:
    """Encode each piece of `pieces` (int64 [pieces]) as bytes, which can be concatenated."""
    joined = pieces.astype(np.int32).tobytes()
    return [joined[start : start + _PIECE_BYTES] for start in range(0, len(joined), _PIECE_BYTES)]


def decode_pieces(groups: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Decode groups of concatenated pieces.

    Returns the index of each piece's group, and the pieces: int64 [pieces] each.
    """
    counts = np.array(list(map(len, groups)), np.int64) // _PIECE_BYTES
    return np.repeat(np.arange(len(groups)), counts), np.frombuffer(
        b"".join(groups), np.int32
    ).astype(np.int64)
