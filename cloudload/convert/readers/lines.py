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

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cloudload.convert.input_files import (
    DamagedError,
    InputFile,
    Range,
    StoredByteCounter,
    read_decompressed,
)
from cloudload.convert.readers.json_objects import (
    NOT_AN_OBJECT,
    NOT_JSON,
    Parsed,
    parse_object,
)
from cloudload.convert.records import (
    BYTE_ORDER_MARK,
    BlockStart,
    FileUnit,
    InputBlock,
    Record,
    describe_not_utf8,
)

_ONE_PER_LINE = "Write one object per line"
_JQ = "jq -c . FILE"


@dataclass(frozen=True, slots=True)
class LinesUnit(FileUnit):
    """A file of lines, or a range of an uncompressed file of lines, cut into blocks of lines."""

    range: Range | None = None

    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        if self.range is None:
            yield from self._whole_blocks(start, block_bytes)
            return
        if start.offset < self.range[0]:
            start = replace(start, offset=self._find_line(self.range[0]))
        lines = _until_line_end(
            read_decompressed(self.file, start.offset), self.range[1] - start.offset
        )
        for data, _ in _cut_at_line_ends(lines, block_bytes):
            yield LinesBlock(self.file, start, len(data), data, None, is_range=True)
            end = start.offset + len(data)
            start = BlockStart(end, 1, end - self.range[0])

    def _find_line(self, first: int) -> int:
        """Return the offset of the first line that begins at `first` or after it."""
        if first == 0:
            return 0
        offset = first - 1
        for chunk in read_decompressed(self.file, offset):
            if (end := chunk.find(b"\n")) >= 0:
                return offset + end + 1
            offset += len(chunk)
        return offset

    def _whole_blocks(self, start: BlockStart, block_bytes: int) -> Iterator[InputBlock]:
        counter = StoredByteCounter(start.stored)
        chunks = read_decompressed(self.file, start.offset, counter)
        for data, damage in _cut_at_line_ends(chunks, block_bytes):
            end = BlockStart(
                start.offset + len(data),
                start.line + data.count(b"\n"),
                counter.bytes,
            )
            yield LinesBlock(self.file, start, end.stored - start.stored, data, damage)
            start = end


@dataclass(frozen=True)
class LinesBlock:
    """Whole lines of a file. `damage` describes the damage after these lines, or is None."""

    file: InputFile
    start: BlockStart
    input_bytes: int
    data: bytes
    damage: str | None
    is_range: bool = False

    def records(self, text_key: str) -> Iterator[Record]:
        is_json = self.file.format != "lines"
        for place, line in self._lines():
            if is_json and not line.strip():
                continue
            fields, problem = _parse_json(line) if is_json else _parse_text(line, text_key)
            yield Record(self.file, place, fields, problem, line)
        if self.damage:
            number = self.start.line + self.data.count(b"\n")
            yield Record(self.file, str(number), None, self.damage)

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield (place, line without its ending). A range has offsets instead of line numbers."""
        data, offset = self.data, self.start.offset
        begin = len(BYTE_ORDER_MARK) if offset == 0 and data.startswith(BYTE_ORDER_MARK) else 0
        number = self.start.line
        while begin < len(data):
            end = data.find(b"\n", begin)
            end = len(data) if end < 0 else end
            place = f"@{offset + begin}" if self.is_range else str(number)
            yield place, data[begin:end].removesuffix(b"\r")
            begin, number = end + 1, number + 1


def _parse_text(line: bytes, text_key: str) -> Parsed:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, f"the record is {describe_not_utf8(error)}"


def _parse_json(line: bytes) -> Parsed:
    fields, problem = parse_object(line)
    if problem is None or not problem.startswith((NOT_JSON, NOT_AN_OBJECT)):
        return fields, problem
    if line.lstrip().startswith(b"["):
        return None, f"{problem}. {_ONE_PER_LINE}, not a list, or set format (--format) to json"
    if problem.startswith(NOT_AN_OBJECT):
        return None, f"{problem}. {_ONE_PER_LINE}"
    if _continues(line):
        return None, f"{problem}. {_ONE_PER_LINE} if objects span several lines: {_JQ}"
    return None, problem


def _continues(line: bytes) -> bool:
    """Whether a line of invalid JSON may begin an object that spans several lines."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return line.lstrip().startswith(b"{") and error.pos >= len(error.doc.rstrip())
    except (ValueError, RecursionError):
        return False
    return False


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


def _cut_at_line_ends(
    chunks: Iterator[bytes], block_bytes: int
) -> Iterator[tuple[bytes, str | None]]:
    """Yield (whole lines, a description of the damage after them or None) for each block.

    Drops a line that is cut off by damage.
    """
    parts: list[bytes] = []
    filled, damage = 0, None
    try:
        for chunk in chunks:
            start = 0
            # a block ends at the first line end after `block_bytes`
            while (cut := chunk.find(b"\n", start + max(0, block_bytes - 1 - filled)) + 1) > 0:
                yield b"".join([*parts, chunk[start:cut]]), None
                start, parts, filled = cut, [], 0
            parts.append(chunk[start:])
            filled += len(chunk) - start
    except DamagedError as error:
        damage = str(error)
        pending = b"".join(parts)
        parts = [pending[: pending.rfind(b"\n") + 1]]
    pending = b"".join(parts)
    if pending or damage:
        yield pending, damage
