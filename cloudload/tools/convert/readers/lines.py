"""Files of JSON lines, or of one document per line.

    file     {"text": "a"}⏎{"text": "b"}⏎{"text": "c"}⏎          block_bytes = 15
    blocks   {"text": "a"}⏎{"text": "b"}⏎ │ {"text": "c"}⏎

A block ends when its lines have at least `block_bytes`, or when the file ends.

A range of a file contains the lines whose first byte is in the range, so each line is read once,
wherever the file is cut. The reader of a range does not know line numbers, so it names each record
by the offset of its line.

    ranges   0 to 21                      21 to 42
    lines    {"text": "a"}⏎{"text": "b"}⏎ │ {"text": "c"}⏎
    names    a.jsonl:@0     a.jsonl:@14     a.jsonl:@28
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, json_records, record_values
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record


@dataclass(frozen=True, slots=True)
class LinesUnit(input_records.FileUnit):
    """A file of lines, or a range of an uncompressed file of lines, cut into blocks of lines."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        if self.range is None:
            yield from self.whole_blocks(
                start, block_bytes, input_files.StoredByteCounter(start.stored)
            )
            return
        if start.offset < self.range[0]:
            start = replace(start, offset=self._find_line(self.range[0]))
        lines = _until_line_end(
            input_files.read_decompressed(self.file, start.offset), self.range[1] - start.offset
        )
        for data, damage, size in file_content.cut_at_line_ends(lines, block_bytes):
            yield LinesBlock(self.file, start, size, data, damage, is_range=True)
            end = start.offset + size
            start = BlockStart(end, 1, end - self.range[0])

    def _find_line(self, first: int) -> int:
        """Return the offset of the first line that begins at `first`, above 0, or after it."""
        offset = first - 1
        for chunk in input_files.read_decompressed(self.file, offset):
            if (end := chunk.find(b"\n")) >= 0:
                return offset + end + 1
            offset += len(chunk)
        return offset

    def whole_blocks(
        self, start: BlockStart, block_bytes: int, counter: input_files.StoredByteCounter
    ) -> Iterator[LinesBlock]:
        """Yield the blocks of a file that is not cut into ranges."""
        chunks = input_files.read_decompressed(self.file, start.offset, counter)
        for data, damage, size in file_content.cut_at_line_ends(chunks, block_bytes):
            end = BlockStart(
                start.offset + size,
                start.line + file_content.count_line_ends(data) + (size > len(data)),
                counter.bytes,
            )
            yield LinesBlock(self.file, start, end.stored - start.stored, data, damage)
            start = end


@dataclass(frozen=True)
class LinesBlock(input_records.FileBlock):
    """Whole lines of a file. `damage` describes why what follows is not read, or is None."""

    data: bytes
    damage: str | None
    is_range: bool = False

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        if self.file.format != "lines" and errors == choices.STRICT:
            yield from self._json_records()
        else:
            yield from self._other_records(text_key, errors)
        if self.damage:
            after = self.start.line + file_content.count_line_ends(self.data)
            yield self.record(self._place(after, len(self.data)), None, self.damage)

    def _json_records(self) -> Iterator[Record]:
        is_first = self.start.offset == 0
        for number, begin, line, parsed in json_records.parse_lines(self.data, is_first=is_first):
            yield Record(self.file, self._place(self.start.line + number, begin), *parsed, line)

    def _other_records(self, text_key: str, errors: str) -> Iterator[Record]:
        is_json = self.file.format != "lines"
        parse = json_records.parse_line if is_json else partial(_parse_text, text_key)
        lines = json_records.split_lines(self.data, is_first=self.start.offset == 0)
        for number, (begin, line) in enumerate(lines, self.start.line):
            if line.strip() or not is_json:
                yield self.parse(self._place(number, begin), line, errors, parse)

    def _place(self, number: int, begin: int) -> str:
        """The number of a line, or, in a range, its offset in the file."""
        return f"@{self.start.offset + begin}" if self.is_range else str(number)


def _parse_text(text_key: str, line: bytes) -> record_values.Parsed:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, f"the record is {file_kinds.describe_not_utf8(error)}"


def _until_line_end(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield at least `size` bytes, up to the end of a line; nothing if `size` <= 0.

    `size` is not positive if a line that begins before a range covers the whole range.
    """
    for chunk in chunks if size > 0 else ():
        end = chunk.find(b"\n", max(0, size - 1))
        if end >= 0:
            yield chunk[: end + 1]
            return
        yield chunk
        size -= len(chunk)
