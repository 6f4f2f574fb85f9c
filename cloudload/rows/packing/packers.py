"""The reference packers: pack one lane into rows of `seq_len` tokens, document by document.

    documents     aaaa bbbbbbb cc      seq_len = 5
    concat        aaaab bbbbb bcc..    documents can span rows; only the last row is padded
    best_fit      bbbbb aaaa. bbcc.    a document that fits in a row is never split; the remainder
                                       of a longer one is packed like a document
    one_per_row   aaaa. bbbbb cc...    one document per row; the rest of a longer one is cut off
                                       (overflow="cut"), or fills more rows (overflow="rows")

Packers work with ordinals and sizes of documents, never with tokens. A packer appends each row to
`rows` as soon as it is complete, so rows do not depend on how far the lane has read ahead. Each row
includes the lane's cursor and residue after the row, from which packing can continue. The
**cursor** (ordinal, offset) is the next unread token. The **residue** is the spans that were read
but are not in a complete row yet. Only `best_fit` has a residue.

With `best_fit`, short documents wait in open rows, but the full rows of long documents leave at
once. So that the first rows are a fair sample of the documents, few may wait at first: about √n of
the first n documents; see `Packing.fair_from`.

These classes are the specification of `concat_lanes` and `best_fit_lanes`, their vectorized twins.
Tests compare the twins with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cloudload.rows.packing.residue import EMPTY_GROUP, Span, decode_residue, encode_residue
from cloudload.system import NEVER, Ints

Cursor = tuple[int, int]
"""(ordinal, offset) of the next unread token."""
Piece = tuple[int, int, int, bool]
"""(ordinal, start, stop, is_last): tokens [start, stop) of a document. `is_last` is True if the
document has no tokens in later rows."""


class PackedRow(NamedTuple):
    """The pieces of a row, in order, and the lane's cursor and residue after the row."""

    pieces: Sequence[Piece]
    cursor: Cursor
    residue: bytes = b""


class Packer(ABC):
    """Packs the documents of one lane, starting at a cursor."""

    num_pending = 0
    """Number of added tokens that are certain to be in the next row."""

    def __init__(self, seq_len: int, cursor: Cursor) -> None:
        self.rows: deque[PackedRow] = deque()
        """Complete rows that the caller has not taken yet."""
        self._seq_len, self._first, self._cursor = seq_len, cursor, cursor

    @abstractmethod
    def add(self, ordinal: int, size: int) -> None:
        """Pack the lane's next document, of `size` tokens; 0 if it is empty or left out.

        Raises `ValueError` if the starting cursor is inside a document, but the first document
        added does not match the cursor.
        """

    @abstractmethod
    def finish(self) -> None:
        """Turn the remaining tokens into rows, because there are no more documents."""

    def _start(self, ordinal: int, size: int) -> int:
        """The number of a document's tokens that are before the starting cursor.

        Raises `ValueError` as `add` does.
        """
        expected, offset = self._first
        if not offset:
            return 0
        self._first = (expected, 0)
        check_start(expected, offset, ordinal, size)
        return offset


@dataclass(frozen=True)
class Packing:
    """The settings that determine how documents become rows."""

    name: str
    """`concat`, `best_fit` or `one_per_row`."""
    seq_len: int
    open_rows: int
    """Maximum number of rows that `best_fit` keeps open in each lane."""
    overflow: str
    """How `one_per_row` treats tokens that do not fit in their document's row: `cut` or `rows`."""
    fair_from: int | None = None
    """The lanes' first ordinal in the run. With `best_fit`, of the n documents that a lane has read
    since then, at most √n wait in two or more open rows. If more than √n / 2 wait in a single row
    that is at least 5/8 full, the row ends when a document as long as a row begins. If None, only
    `open_rows` limits the documents that wait."""

    @property
    def least_ordinal(self) -> int:
        """`fair_from` as a number. If it is None, the number allows any number of documents."""
        return -NEVER if self.fair_from is None else self.fair_from

    @property
    def most_free(self) -> int:
        """The number of free tokens up to which a single open row ends before a long document."""
        return 3 * self.seq_len // 8

    @property
    def row_units(self) -> int:
        """The size of a row in units of `lengths`: `seq_len` tokens for `concat`, else 1 row."""
        return self.seq_len if self.name == "concat" else 1

    def units_of(self, sizes: Ints) -> Ints:
        """The number of units in documents: rows with `one_per_row`, otherwise tokens."""
        if self.name != "one_per_row":
            return sizes
        return np.minimum(sizes, 1) if self.cuts else -(-sizes // self.seq_len)

    @property
    def has_residue(self) -> bool:
        """Whether lanes have a residue."""
        return self.name == "best_fit"

    @property
    def cuts(self) -> bool:
        """Whether tokens that do not fit in their document's row are dropped."""
        return (self.name, self.overflow) == ("one_per_row", "cut")

    def packer(self, cursor: Cursor = (0, 0), residue: bytes = b"") -> Packer:
        """Create a packer that starts at a cursor and, for `best_fit`, with a residue.

        Raises `ValueError` for an invalid residue.
        """
        if self.has_residue:
            return BestFitPacker(self, cursor, residue)
        if self.name == "one_per_row":
            return _OnePerRowPacker(self.seq_len, self.overflow == "cut", cursor)
        return _ConcatPacker(self.seq_len, cursor)


def check_start(expected: int, offset: int, ordinal: int, size: int) -> None:
    """Raise `ValueError` if a lane's first document does not match the lane's cursor.

    The cursor is at token `offset` of document `expected`. The first document is `ordinal`, and has
    `size` tokens.
    """
    if ordinal != expected or offset > size:
        raise ValueError(
            f"the cursor is at token {offset} of document {expected}, but document {ordinal} has "
            f"{size} tokens"
        )


def _after(ordinal: int, stop: int, size: int) -> Cursor:
    return (ordinal + 1, 0) if stop == size else (ordinal, stop)


class _ConcatPacker(Packer):
    """The reference packer for `ConcatLanes`."""

    def __init__(self, seq_len: int, cursor: Cursor) -> None:
        super().__init__(seq_len, cursor)
        self._pieces: list[Piece] = []

    def add(self, ordinal: int, size: int) -> None:
        start = self._start(ordinal, size)
        while start < size:
            stop = min(size, start + self._seq_len - self.num_pending)
            self._pieces.append((ordinal, start, stop, stop == size))
            self.num_pending += stop - start
            self._cursor = _after(ordinal, stop, size)
            if self.num_pending == self._seq_len:
                self.finish()
            start = stop

    def finish(self) -> None:
        if self._pieces:
            self.rows.append(PackedRow(self._pieces, self._cursor))
            self._pieces, self.num_pending = [], 0


class _OnePerRowPacker(Packer):
    """The packer for `one_per_row`, which has no vectorized twin."""

    def __init__(self, seq_len: int, cuts: bool, cursor: Cursor) -> None:
        super().__init__(seq_len, cursor)
        self._cuts = cuts

    def add(self, ordinal: int, size: int) -> None:
        start = self._start(ordinal, size)
        while start < size:
            stop = min(size, start + self._seq_len)
            end = stop if self._cuts else size
            self.rows.append(
                PackedRow([(ordinal, start, stop, stop == end)], _after(ordinal, stop, end))
            )
            start = size if self._cuts else stop

    def finish(self) -> None:
        pass


class BestFitPacker(Packer):
    """The reference packer for `BestFitLanes`.

    Open rows are sorted by ascending free space, then by the time of their last change. A residue
    lists them in this order, so it restores the open rows of a packer with the same settings.
    """

    def __init__(self, packing: Packing, cursor: Cursor, residue: bytes) -> None:
        super().__init__(packing.seq_len, cursor)
        self._packing, seq_len = packing, packing.seq_len
        self._free: list[int] = []
        self.open_spans: list[list[Span]] = []
        """The spans of each open row, in the order of a residue."""
        self._encoded: list[bytes] = []
        """Each open row, encoded as in a residue."""
        waiting, rows = decode_residue(residue, cursor[0])
        for spans in rows:
            free = seq_len - sum(stop - start for _, start, stop in spans)
            if free <= 0 or (self._free and free < self._free[-1]):
                raise ValueError(f"open rows that do not fit {seq_len} tokens, or are out of order")
            self._free.append(free)
            self.open_spans.append(spans)
            self._encoded.append(encode_residue(spans))
        self._waiting = deque(waiting)
        self._close_rows()
        while self._waiting:
            self._pack(*self._waiting.popleft())

    def add(self, ordinal: int, size: int) -> None:
        start = self._start(ordinal, size)
        if not start and size >= self._seq_len:
            self._cursor = (ordinal, 0)
            self._end_single_row()
        while size - start >= self._seq_len:
            stop = start + self._seq_len
            self._cursor = _after(ordinal, stop, size)
            self._emit([(ordinal, start, stop)], is_last=stop == size)
            start = stop
        self._cursor = (ordinal + 1, 0)
        if start < size:
            self._put_piece((ordinal, start, size))

    def finish(self) -> None:
        while self.open_spans:
            self._emit_fullest()

    def _pack(self, ordinal: int, start: int, size: int) -> None:
        """Pack a waiting span, which was left over from a different `seq_len`."""
        while size - start >= self._seq_len:
            stop = start + self._seq_len
            if stop < size:
                self._waiting.appendleft((ordinal, stop, size))
            self._emit([(ordinal, start, stop)], is_last=stop == size)
            if stop < size:
                self._waiting.popleft()
            start = stop
        if start < size:
            self._put_piece((ordinal, start, size))

    def _put_piece(self, span: Span) -> None:
        """Put a span into the fullest open row that has space for it, or into a new row."""
        size = span[2] - span[1]
        index = bisect_left(self._free, size)
        if index == len(self._free):
            free, spans = self._seq_len - size, [span]
        else:
            free, spans = self._free.pop(index) - size, [*self.open_spans.pop(index), span]
            del self._encoded[index]
        if not free:
            self._emit(spans)
            return
        index = bisect_right(self._free, free)
        self._free.insert(index, free)
        self.open_spans.insert(index, spans)
        self._encoded.insert(index, encode_residue(spans))
        self._close_rows()

    def _close_rows(self) -> None:
        """Emit the fullest rows until few enough rows and documents wait."""
        while len(self.open_spans) > self._packing.open_rows or self._too_many_wait():
            self._emit_fullest()

    def _too_many_wait(self) -> bool:
        return len(self.open_spans) > 1 and self._count_waiting() ** 2 > self._num_read

    def _end_single_row(self) -> None:
        """End the only open row, because a long document begins."""
        is_full = len(self.open_spans) == 1 and self._free[0] <= self._packing.most_free
        if is_full and (2 * self._count_waiting()) ** 2 > self._num_read:
            self._emit_fullest()

    @property
    def _num_read(self) -> int:
        return self._cursor[0] - self._packing.least_ordinal

    def _count_waiting(self) -> int:
        return sum(map(len, self.open_spans))

    def _emit_fullest(self) -> None:
        del self._free[0], self._encoded[0]
        self._emit(self.open_spans.pop(0))

    def _emit(self, spans: list[Span], *, is_last: bool = True) -> None:
        pieces = [(ordinal, start, stop, is_last) for ordinal, start, stop in spans]
        residue = b""
        if self._waiting or self.open_spans:
            residue = b"".join(
                (encode_residue(self._waiting) if self._waiting else EMPTY_GROUP, *self._encoded)
            )
        self.rows.append(PackedRow(pieces, self._cursor, residue))
