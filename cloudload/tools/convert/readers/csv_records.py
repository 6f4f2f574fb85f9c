"""Find where the records of a CSV file end, in bytes that arrive in pieces.

    bytes      id,text⏎1,"a⏎b"⏎2,c "d"⏎
    records    id,text⏎ │ 1,"a⏎b"⏎ │ 2,c "d"⏎

A quote opens a quoted field only at the start of a field, and two quotes within a quoted field are
one literal quote, as in Python's `csv`, pandas and Excel. The scan only searches for the next
newline or quote, so its result depends on neither the chunks nor the encoding of the text. Without
quotes, every line is a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloudload.tools.convert.input_files import MOST_RECORD_BYTES

_QUOTE = b'"'


class UnclosedQuoteError(Exception):
    """A quoted field has no closing quote."""


class LongRecordError(Exception):
    """A record is larger than 1 GiB."""


def split_records(
    chunks: Iterable[bytes], delimiter: bytes, *, has_quotes: bool = True
) -> Iterator[bytes]:
    """Yield the bytes of each record, including its line ending.

    Raises `UnclosedQuoteError` if a quoted field does not end in the file, or within 1 GiB, and
    `LongRecordError` if a record without an open quote does not. Also raises the errors of
    `chunks`. An unfinished record before an error is dropped.
    """
    pending, opening = bytearray(), delimiter + _QUOTE
    place, is_quoted = 0, False  # where to search next, and whether that place is in a quoted field
    for chunk in chunks:
        pending += chunk
        start = 0
        while True:
            if is_quoted:
                close = pending.find(_QUOTE, place)
                if close < 0 or close + 1 == len(pending):  # the next byte may be a second quote
                    place = len(pending) if close < 0 else close
                    break
                is_quoted = pending[close + 1] == _QUOTE[0]
                place = close + 1 + is_quoted
            elif has_quotes and place == start and pending.startswith(_QUOTE, start):
                is_quoted, place = True, start + 1
            else:
                end = pending.find(b"\n", place)
                stop = end if end >= 0 else len(pending)
                quote = pending.find(opening, place, stop) if has_quotes else -1
                if quote >= 0:
                    is_quoted, place = True, quote + 2
                elif end < 0:
                    place = max(place, len(pending) - 1)  # the last byte may be a delimiter
                    break
                else:
                    yield bytes(pending[start : end + 1])
                    start = place = end + 1
        del pending[:start]
        place -= start
        if len(pending) > MOST_RECORD_BYTES:
            raise UnclosedQuoteError if is_quoted else LongRecordError
    if is_quoted and pending.find(_QUOTE, place) < 0:
        raise UnclosedQuoteError
    if pending:
        yield bytes(pending)
