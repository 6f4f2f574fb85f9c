"""CSV and TSV files with a header, one document per record.

    file     id,text⏎1,"a⏎b"⏎2,c⏎          block_bytes = 8
    blocks   id,text⏎1,"a⏎b"⏎ │ 2,c⏎

A block ends when its records have at least `block_bytes`, not counting the header, or when the file
ends. Its offset is that of its first byte, where a reader can restart.

`csv_records` finds the records, and the standard library's `csv` parses each of them.
`pyarrow.csv` would parse faster, but it provides no offset at which to restart, refuses a record
that is larger than its block, and infers types, so that `007` becomes 7.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudload.convert.input_files import (
    DamagedError,
    InputFile,
    StoredByteCounter,
    read_decompressed,
)
from cloudload.convert.readers.csv_records import (
    MOST_RECORD_BYTES,
    UnclosedQuoteError,
    split_records,
)
from cloudload.convert.readers.typed_text import parse_text
from cloudload.convert.records import (
    BYTE_ORDER_MARK,
    BlockStart,
    Fields,
    FileUnit,
    InputBlock,
    Record,
    describe_not_utf8,
)
from cloudload.errors import ConvertError

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TO_UTF_8 = "Convert the file to UTF-8, for example with iconv"
_UNCLOSED = (
    "a quoted field of this record has no closing quote. If quotes in this file are plain text, "
    "convert the file to JSON Lines"
)


@dataclass(frozen=True, slots=True)
class CsvUnit(FileUnit):
    """A CSV or TSV file, cut into blocks of whole records."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        counter = StoredByteCounter(start.stored)
        records = self._records(0, counter)
        header = _next_or_empty(records, self.file)
        names = _parse_header(header, self.file, fields)
        if start.offset and self._is_seekable():
            records = self._records(start.offset, counter)
        else:
            _skip(records, start.offset - len(header))
        if not names:
            return
        begun = b"" if start.offset else header
        for data, problem in _group(records, begun, block_bytes):
            end = BlockStart(
                start.block + 1,
                start.offset + len(data),
                start.line + data.count(b"\n"),
                counter.bytes,
            )
            read = end.stored - start.stored
            yield CsvBlock(self.file, start, read, data, names, fields.encodings, problem)
            start = end

    def _is_seekable(self) -> bool:
        return self.file.url != "-" and self.file.compression is None

    def _records(self, offset: int, counter: StoredByteCounter) -> Iterator[bytes]:
        return split_records(read_decompressed(self.file, offset, counter), _delimiter(self.file))


def _delimiter(file: InputFile) -> bytes:
    return b"\t" if file.format == "tsv" else b","


def _skip(records: Iterator[bytes], size: int) -> None:
    """Read and drop records that have `size` bytes in total."""
    while size > 0:
        size -= len(next(records))


def _next_or_empty(records: Iterator[bytes], file: InputFile) -> bytes:
    """Return the header's bytes; no bytes if the file is empty."""
    try:
        return next(records, b"")
    except DamagedError as error:
        reason = str(error)
    except UnclosedQuoteError:
        reason = _UNCLOSED
    raise ConvertError(f"{file.display_name}:1: {reason}. Repair the file or leave it out")


def _parse_header(header: bytes, file: InputFile, fields: Fields) -> tuple[str, ...]:
    """Return the names of the fields; no names if the file is empty.

    Raises `ConvertError` if the header is not UTF-8, or if it repeats a field that the
    conversion reads.
    """
    where = f"{file.display_name}:1"
    if header.startswith(_UTF_16_MARKS):
        raise ConvertError(f"{where}: the file is UTF-16, not UTF-8. {_TO_UTF_8} -f UTF-16")
    try:
        names = _parse_record(header.removeprefix(BYTE_ORDER_MARK), file)
    except UnicodeDecodeError as error:
        raise ConvertError(
            f"{where}: the header is {describe_not_utf8(error)}. {_TO_UTF_8}"
        ) from None
    except csv.Error as error:
        raise ConvertError(
            f"{where}: the header {_describe(error)}. Repair the file or leave it out"
        ) from None
    if twice := sorted(name for name in {*names} & {*fields} if names.count(name) > 1):
        raise ConvertError(
            f"{where}: the header has the field {twice[0]!r} twice. Rename one of the two fields"
        )
    return tuple(names)


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
    except DamagedError as error:
        problem = str(error)
    except UnclosedQuoteError:
        problem = _UNCLOSED
    if size or problem:
        yield b"".join(parts), problem


def _parse_record(record: bytes, file: InputFile) -> list[str]:
    """Parse a record. Raises `UnicodeDecodeError` or `csv.Error` if it is bad."""
    delimiter = _delimiter(file).decode()
    # the limit is process-wide, so restore it for other users of `csv`
    before = csv.field_size_limit(min(MOST_RECORD_BYTES, sys.maxsize))
    try:
        return next(csv.reader([record.decode()], delimiter=delimiter), [])
    finally:
        csv.field_size_limit(before)


def _describe(error: csv.Error) -> str:
    if "new-line" in str(error):
        return "has a carriage return without a newline, outside quotes"
    return f"has an error ({error})"


@dataclass(frozen=True)
class CsvBlock:
    """Whole records of a file. The file's first block begins with the header."""

    file: InputFile
    start: BlockStart
    input_bytes: int
    data: bytes
    names: tuple[str, ...]
    encodings: Mapping[str, str]
    damage: str | None

    def records(self, text_key: str) -> Iterator[Record]:
        line, is_header = self.start.line, self.start.offset == 0
        for data in split_records([self.data], _delimiter(self.file)):
            if not is_header and data.strip(b"\r\n"):
                fields, problem = self._parse(data)
                yield Record(self.file, str(line), fields, problem, data)
            line, is_header = line + data.count(b"\n"), False
        if self.damage:
            yield Record(self.file, str(line), None, self.damage)

    def _parse(self, data: bytes) -> tuple[Mapping[str, Any] | None, str | None]:
        """Return (a record's fields, None), or (None, its problem)."""
        try:
            values = _parse_record(data, self.file)
            if len(values) != len(self.names):
                counts = f"{len(values)}, but the header has {len(self.names)}"
                return None, f"the number of fields is {counts}"
            fields: dict[str, Any] = dict(zip(self.names, values, strict=True))
            for name in self.encodings.keys() & fields.keys():
                fields[name] = parse_text(name, fields[name], self.encodings[name])
        except UnicodeDecodeError as error:
            return None, f"the record is {describe_not_utf8(error)}. {_TO_UTF_8}"
        except csv.Error as error:
            return None, f"the record {_describe(error)}"
        except ValueError as error:
            return None, str(error)
        return fields, None
