"""CSV and TSV files with a header, one document per record.

    file       id,text⏎1,"a⏎b"⏎2,c "d"⏎             block_bytes = 8
    records    id,text⏎ │ 1,"a⏎b"⏎ │ 2,c "d"⏎
    blocks     id,text⏎1,"a⏎b"⏎ │ 2,c "d"⏎

A block ends when its records have at least `block_bytes`, not counting the header, or when the file
ends. Its offset is that of its first byte, where a reader can restart.

Blank lines are skipped, also before the header. `split_records` finds the records, and the standard
library's `csv` parses each of them. `pyarrow.csv` would parse faster, but it provides no offset at
which to restart, refuses a record that is larger than its block, and infers types, so that `007`
becomes 7.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, record_values, writer
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record
from cloudload.tools.convert.values import parse_text

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TO_UTF_8 = "Convert the file to UTF-8, for example with iconv"
_PLAIN_QUOTES = "If quotes in this file are plain text, set quoting (--quoting) to none"
_JOINED = "If files were joined, convert each one separately"

_TO_PARQUET = "convert the file to Parquet, for example with pandas.read_csv(FILE, sep={!r})"
_OTHER_DELIMITERS = {
    ";": ("semicolons", _TO_PARQUET.format(";")),
    "|": ("vertical bars", _TO_PARQUET.format("|")),
    "\t": ("tabs", "set format (--format) to tsv"),
    ",": ("commas", "set format (--format) to csv"),
}

_QUOTE = b'"'

_UNCLOSED = f"a quoted field of this record has no closing quote. {_PLAIN_QUOTES}"
_TOO_LONG = "the record is larger than the limit of 1 GiB"


@dataclass(frozen=True)
class _Dialect:
    """How the records of a file are cut into values."""

    delimiter: str
    has_quotes: bool

    @staticmethod
    def of(file: input_files.InputFile, fields: Fields) -> _Dialect:
        return _Dialect(
            "\t" if file.format == "tsv" else ",", fields.quoting == choices.CSV_QUOTING
        )

    def split(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the bytes of each record, with the errors of `split_records`."""
        return split_records(chunks, self.delimiter.encode(), has_quotes=self.has_quotes)

    def parse(self, record: bytes) -> list[str]:
        """Return the values of a record. Raises `UnicodeDecodeError` or `csv.Error`."""
        text = record.decode()
        if not self.has_quotes:
            return text.removesuffix("\n").removesuffix("\r").split(self.delimiter)
        # the limit is process-wide, so restore it for other users of `csv`
        before = csv.field_size_limit(min(file_content.MOST_RECORD_BYTES, sys.maxsize))
        try:
            return next(csv.reader([text], delimiter=self.delimiter, strict=True), [])
        finally:
            csv.field_size_limit(before)


@dataclass(frozen=True, slots=True)
class CsvUnit(input_records.FileUnit):
    """A CSV or TSV file, cut into blocks of whole records."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        counter = input_files.StoredByteCounter(start.stored)
        dialect = _Dialect.of(self.file, fields)
        records = dialect.split(input_files.read_decompressed(self.file, 0, counter))
        head, header = _read_head(records, self.file)
        if not header:
            return
        line = 1 + head.count(b"\n", 0, len(head) - len(header))
        names = _parse_header(header, f"{self.file.display_name}:{line}", dialect, fields)
        if start.offset and self.file.url != "-" and self.file.compression is None:
            records = dialect.split(input_files.read_decompressed(self.file, start.offset, counter))
        else:
            _skip(records, start.offset - len(head))
        for data, problem in _group(records, b"" if start.offset else head, block_bytes):
            end = BlockStart(
                start.offset + len(data),
                start.line + file_content.count_line_ends(data),
                counter.bytes,
            )
            read = end.stored - start.stored
            yield CsvBlock(self.file, start, read, data, names, dialect, fields.encodings, problem)
            start = end


def _skip(records: Iterator[bytes], size: int) -> None:
    """Read and drop records that have `size` bytes in total."""
    while size > 0:
        size -= len(next(records))


def _is_blank(record: bytes) -> bool:
    return not record.removeprefix(file_content.BYTE_ORDER_MARK).strip(b"\r\n")


def _read_head(records: Iterator[bytes], file: input_files.InputFile) -> tuple[bytes, bytes]:
    """Return (the bytes up to the end of the header, the header).

    The header is the first record that is not blank. If there is none, it is empty.
    """
    head = bytearray()
    try:
        for record in records:
            head += record
            if not _is_blank(record):
                return bytes(head), record
    except file_content.DamagedError as error:
        reason = str(error)
    else:
        return bytes(head), b""
    line = 1 + head.count(b"\n")
    raise ConvertError(f"{file.display_name}:{line}: {reason}. Repair the file or leave it out")


def _parse_header(header: bytes, where: str, dialect: _Dialect, fields: Fields) -> tuple[str, ...]:
    """Return the names of the fields.

    Raises `ConvertError` if the header is not UTF-8, if it repeats a field that the conversion
    reads, or if it seems to have a different delimiter.
    """
    if header.startswith(_UTF_16_MARKS):
        raise ConvertError(f"{where}: the file is UTF-16, not UTF-8. {_TO_UTF_8} -f UTF-16")
    try:
        names = dialect.parse(header.removeprefix(file_content.BYTE_ORDER_MARK))
    except UnicodeDecodeError as error:
        raise ConvertError(
            f"{where}: the header is {file_kinds.describe_not_utf8(error)}. {_TO_UTF_8}"
        ) from None
    except csv.Error as error:
        raise ConvertError(
            f"{where}: the header {_describe(error)}. Repair the file or leave it out"
        ) from None
    if twice := sorted(name for name in {*names} & {*fields} if names.count(name) > 1):
        raise ConvertError(
            f"{where}: the header has the field {twice[0]!r} twice. Rename one of the two fields"
        )
    if len(names) == 1 and names[0] != fields[0]:
        _refuse_other_delimiter(names[0], where)
    return tuple(names)


def _refuse_other_delimiter(name: str, where: str) -> None:
    """Raise `ConvertError` if the header's only name seems to be several names."""
    for delimiter, (noun, advice) in _OTHER_DELIMITERS.items():
        if delimiter in name:
            raise ConvertError(
                f"{where}: the header has only the field {writer.shorten(name)}. If {noun} "
                f"separate the fields, {advice}"
            )


def _group(
    records: Iterator[bytes], begun: bytes, block_bytes: int
) -> Iterator[tuple[bytes, str | None]]:
    """Yield (whole records, a description of the damage after them or None) for each block.

    The first block begins with the bytes `begun`, which do not count toward its size.
    """
    parts, size, problem = [begun], 0, None
    try:
        for record in records:
            parts.append(record)
            size += len(record)
            if size >= block_bytes:
                yield b"".join(parts), None
                parts, size = [], 0
    except file_content.DamagedError as error:
        problem = str(error)
    if size or problem:
        yield b"".join(parts), problem


def _describe(error: csv.Error) -> str:
    if "new-line" in str(error):
        return "has a carriage return without a newline, outside quotes"
    if "expected after" in str(error):
        return f"has text after a closing quote. {_PLAIN_QUOTES}"
    return f"has an error ({error})"


@dataclass(frozen=True)
class CsvBlock(input_records.FileBlock):
    """Whole records of a file. The file's first block begins with the header."""

    data: bytes
    names: tuple[str, ...]
    dialect: _Dialect
    encodings: Mapping[str, str]
    damage: str | None

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        line, is_in_head = self.start.line, self.start.offset == 0
        for data in self.dialect.split([self.data]):
            is_blank = _is_blank(data)
            if not is_in_head and not is_blank:
                yield self.parse(line, data, errors, self._parse)
            line, is_in_head = line + data.count(b"\n"), is_in_head and is_blank
        if self.damage:
            yield self.record(line, None, self.damage)

    def _parse(self, data: bytes) -> record_values.Parsed:
        """Return (a record's fields, None), or (None, its problem)."""
        try:
            values = self.dialect.parse(data.removeprefix(file_content.BYTE_ORDER_MARK))
            if len(values) > 1 and values == [*self.names]:
                return None, f"the record repeats the header. {_JOINED}"
            if len(values) != len(self.names):
                counts = f"({len(values)}, and the header has {len(self.names)})"
                return None, f"the number of fields is not that of the header {counts}"
            fields: dict[str, Any] = dict(zip(self.names, values, strict=True))
            for name in self.encodings.keys() & fields.keys():
                fields[name] = parse_text(name, fields[name], self.encodings[name])
        except UnicodeDecodeError as error:
            return None, f"the record is {file_kinds.describe_not_utf8(error)}. {_TO_UTF_8}"
        except csv.Error as error:
            return None, f"the record {_describe(error)}"
        except ValueError as error:
            return None, str(error)
        return fields, None


def split_records(
    chunks: Iterable[bytes], delimiter: bytes, *, has_quotes: bool = True
) -> Iterator[bytes]:
    """Yield the bytes of each record, including its line ending, from bytes in pieces.

    A quote opens a quoted field only at the start of a field, and two quotes within a quoted field
    are one literal quote, as in Python's `csv`, pandas and Excel. The scan only searches for the
    next newline or quote, so its result depends on neither the chunks nor the encoding of the text.
    Without quotes, every line is a record.

    Raises `DamagedError` if a quoted field does not end in the file, or a record within 1 GiB, and
    the errors of `chunks`. An unfinished record before an error is dropped.
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
        if len(pending) > file_content.MOST_RECORD_BYTES:
            raise file_content.DamagedError(_UNCLOSED if is_quoted else _TOO_LONG)
    if is_quoted and pending.find(_QUOTE, place) < 0:
        raise file_content.DamagedError(_UNCLOSED)
    if pending:
        yield bytes(pending)
