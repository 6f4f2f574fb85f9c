"""Pack a lane's documents into rows of `seq_len` tokens. Integers only: documents are ordinals and
sizes.

    documents     aaaa bbbbbbb cc      seq_len = 5
    concat        aaaab bbbbb bcc..    documents run on over the ends of rows: nothing cut, no padding but at the end of the data
    best_fit      bbbbb aaaa. bbcc.    a document that fits a row is never split; what is left of a longer one is packed likewise
    one_per_row   aaaa. bbbbb cc...    one document a row, cut at its end (overflow="cut"), or going on in further rows ("rows")

A packer is given its lane's documents one by one and appends each row to `rows` as soon as it is
full, however far the lane has read ahead. A row comes with the **cursor** after it, all that the
lane's future depends on: the next unread token (ordinal, offset), and the **residue**, the spans
that are read but not in a row yet; only `best_fit` has one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cloudload.packing.residue import EMPTY_GROUP, Span, decode_residue, encode_group

Cursor = tuple[int, int]
Piece = tuple[int, int, int, bool]
"""(ordinal, start, stop, is_last): tokens [start, stop) of a document; `is_last` where no later row
has more of it."""


class PackedRow(NamedTuple):
    """The pieces of a row from its start, and the cursor after it."""

    pieces: Sequence[Piece]
    cursor: Cursor
    residue: bytes = b""


class Packer(Protocol):
    """Packs the documents of one lane."""

    rows: deque[PackedRow]
    """Full rows that wait to be taken."""
    num_pending: int
    """Tokens that surely become part of the next rows."""

    def add(self, ordinal: int, size: int) -> None:
        """Pack the lane's next document, `size` tokens or, where nothing of it is to be packed, 0.

        Raises `ValueError` where the cursor stands beyond its end.
        """
        ...

    def finish(self) -> None:
        """There are no more documents: what is left becomes rows, too."""
        ...


@dataclass(frozen=True)
class Packing:
    """How documents become rows."""

    name: str
    seq_len: int
    open_rows: int
    """Rows that `best_fit` holds open."""
    overflow: str
    """What `one_per_row` does with the tokens of a document that do not fit its row."""

    @property
    def has_residue(self) -> bool:
        """Whether lanes hold back what they have read."""
        return self.name == "best_fit"

    @property
    def cuts(self) -> bool:
        """Whether tokens of a document are left out where it does not fit its row."""
        return (self.name, self.overflow) == ("one_per_row", "cut")

    def packer(self, cursor: Cursor = (0, 0), residue: bytes = b"") -> Packer:
        """A packer that goes on from a cursor. Raises `ValueError` for a residue that cannot be."""
        if self.has_residue:
            return BestFitPacker(self.seq_len, self.open_rows, cursor, residue)
        if self.name == "one_per_row":
            return _OnePerRowPacker(self.seq_len, self.overflow == "cut", cursor)
        return _ConcatPacker(self.seq_len, cursor)


class _Start:
    """The offset of the cursor, for the document that it stands in."""

    def __init__(self, cursor: Cursor) -> None:
        self._ordinal, self._offset = cursor

    def of(self, ordinal: int, size: int) -> int:
        if not self._offset:
            return 0
        offset, self._offset = self._offset, 0
        if ordinal != self._ordinal or offset > size:
            raise ValueError(
                f"the cursor stands at token {offset} of document {self._ordinal}, but {ordinal} "
                f"has {size} tokens"
            )
        return offset


def _after(ordinal: int, stop: int, size: int) -> Cursor:
    return (ordinal + 1, 0) if stop == size else (ordinal, stop)


class _ConcatPacker:
    def __init__(self, seq_len: int, cursor: Cursor) -> None:
        self.rows: deque[PackedRow] = deque()
        self.num_pending = 0
        self._seq_len, self._start, self._cursor = seq_len, _Start(cursor), cursor
        self._pieces: list[Piece] = []

    def add(self, ordinal: int, size: int) -> None:
        start = self._start.of(ordinal, size)
        while start < size:
            stop = min(size, start + self._seq_len - self.num_pending)
            self._pieces.append((ordinal, start, stop, stop == size))
            self.num_pending += stop - start
            self._cursor = _after(ordinal, stop, size)
            if self.num_pending == self._seq_len:
                self._emit()
            start = stop

    def finish(self) -> None:
        if self._pieces:
            self._emit()

    def _emit(self) -> None:
        self.rows.append(PackedRow(self._pieces, self._cursor))
        self._pieces, self.num_pending = [], 0


class _OnePerRowPacker:
    num_pending = 0

    def __init__(self, seq_len: int, cuts: bool, cursor: Cursor) -> None:
        self.rows: deque[PackedRow] = deque()
        self._seq_len, self._cuts, self._start = seq_len, cuts, _Start(cursor)

    def add(self, ordinal: int, size: int) -> None:
        start = self._start.of(ordinal, size)
        while start < size:
            stop = min(size, start + self._seq_len)
            end = stop if self._cuts else size
            self.rows.append(
                PackedRow([(ordinal, start, stop, stop == end)], _after(ordinal, stop, end))
            )
            start = size if self._cuts else stop

    def finish(self) -> None:
        pass


class BestFitPacker:
    """Open rows are held by ascending free space, and among equals by age: a residue that lists
    them so restores them exactly."""

    num_pending = 0

    def __init__(self, seq_len: int, open_rows: int, cursor: Cursor, residue: bytes) -> None:
        self.rows: deque[PackedRow] = deque()
        self._seq_len, self._open_rows, self._start, self._cursor = (
            seq_len,
            open_rows,
            _Start(cursor),
            cursor,
        )
        self._free: list[int] = []
        self._open: list[list[Span]] = []
        self._encoded: list[bytes] = []
        """Each open row as it stands in a residue."""
        waiting, rows = decode_residue(residue, cursor[0])
        for spans in rows:
            free = seq_len - sum(stop - start for _, start, stop in spans)
            if free <= 0 or (self._free and free < self._free[-1]):
                raise ValueError(f"open rows that do not fit {seq_len} tokens, or are out of order")
            self._free.append(free)
            self._open.append(spans)
            self._encoded.append(encode_group(spans))
        self._waiting = deque(waiting)
        self._close_rows(self._open_rows)
        while self._waiting:
            self._pack(*self._waiting.popleft())

    def add(self, ordinal: int, size: int) -> None:
        start = self._start.of(ordinal, size)
        while size - start >= self._seq_len:
            stop = start + self._seq_len
            self._cursor = _after(ordinal, stop, size)
            self._emit([(ordinal, start, stop)], is_last=stop == size)
            start = stop
        self._cursor = (ordinal + 1, 0)
        if start < size:
            self._place((ordinal, start, size))

    def finish(self) -> None:
        self._close_rows(0)

    @property
    def open_spans(self) -> list[list[Span]]:
        """The spans of each open row, in the order of a residue."""
        return self._open

    def _pack(self, ordinal: int, start: int, size: int) -> None:
        """Pack a span that another `seq_len` had left."""
        while size - start >= self._seq_len:
            stop = start + self._seq_len
            if stop < size:
                self._waiting.appendleft((ordinal, stop, size))
            self._emit([(ordinal, start, stop)], is_last=stop == size)
            if stop < size:
                self._waiting.popleft()
            start = stop
        if start < size:
            self._place((ordinal, start, size))

    def _place(self, span: Span) -> None:
        """Put a span into the open row that it leaves fullest, or into a new one."""
        size = span[2] - span[1]
        place = bisect_left(self._free, size)
        if place == len(self._free):
            free, spans = self._seq_len - size, [span]
        else:
            free, spans = self._free.pop(place) - size, [*self._open.pop(place), span]
            del self._encoded[place]
        if not free:
            self._emit(spans)
            return
        place = bisect_right(self._free, free)
        self._free.insert(place, free)
        self._open.insert(place, spans)
        self._encoded.insert(place, encode_group(spans))
        if len(self._open) > self._open_rows:
            self._close_rows(self._open_rows)

    def _close_rows(self, most: int) -> None:
        """Emit the fullest rows until no more than `most` are open."""
        while len(self._open) > most:
            del self._free[0], self._encoded[0]
            self._emit(self._open.pop(0))

    def _emit(self, spans: list[Span], *, is_last: bool = True) -> None:
        pieces = [(ordinal, start, stop, is_last) for ordinal, start, stop in spans]
        residue = b""
        if self._waiting or self._open:
            residue = b"".join(
                (encode_group(self._waiting) if self._waiting else EMPTY_GROUP, *self._encoded)
            )
        self.rows.append(PackedRow(pieces, self._cursor, residue))
