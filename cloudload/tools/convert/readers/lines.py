"""Files of JSON lines, or of one document per line.

    file     {"text": "a"}⏎{"text": "b"}⏎{"text": "c"}⏎          block_bytes = 15
    blocks   {"text": "a"}⏎{"text": "b"}⏎ │ {"text": "c"}⏎

A block ends when its lines have at least `block_bytes`, or when the file ends. `parse_object`
parses a JSON object.

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
from functools import partial
from typing import Any

from cloudload.config import choices
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record

_ONE_PER_LINE = "Write one object per line"
_JQ = "jq -c . FILE"
_RECORD_SEPARATOR = b"\x1e"
_TOO_LONG = "the line is larger than 1 GiB, the limit of a record"

NOT_JSON, NOT_AN_OBJECT = "the record is invalid JSON", "the record is not an object"

_ALWAYS_EQUAL = frozenset([str, int, bool, type(None)])
_INTEGERS_FIT_BELOW = 2.0**63
_MAX_DEPTH = 32  # far below the standard library's limit, which depends on the stack


@dataclass(frozen=True, slots=True)
class LinesUnit(input_records.FileUnit):
    """A file of lines, or a range of an uncompressed file of lines, cut into blocks of lines."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        if self.range is None:
            yield from self._whole_blocks(start, block_bytes)
            return
        if start.offset < self.range[0]:
            start = replace(start, offset=self._find_line(self.range[0]))
        lines = _until_line_end(
            input_files.read_decompressed(self.file, start.offset), self.range[1] - start.offset
        )
        for data, damage, size in _cut_at_line_ends(lines, block_bytes):
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

    def _whole_blocks(self, start: BlockStart, block_bytes: int) -> Iterator[InputBlock]:
        chunks, counter = self.open(start)
        for data, damage, size in _cut_at_line_ends(chunks, block_bytes):
            end = BlockStart(
                start.offset + size,
                start.line + data.count(b"\n") + (size > len(data)),
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
        is_json = self.file.format != "lines"
        parse = _parse_json if is_json else partial(_parse_text, text_key)
        for place, line in self._lines():
            if line.strip() or not is_json:
                yield self.parse(place, line, errors, parse)
        if self.damage:
            after = self.start.line + self.data.count(b"\n")
            place = f"@{self.start.offset + len(self.data)}" if self.is_range else str(after)
            yield self.record(place, None, self.damage)

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield (place, line without its ending). A range has offsets instead of line numbers."""
        data, offset = self.data, self.start.offset
        begin = (
            len(input_records.BYTE_ORDER_MARK)
            if offset == 0 and data.startswith(input_records.BYTE_ORDER_MARK)
            else 0
        )
        line = self.start.line
        while begin < len(data):
            end = data.find(b"\n", begin)
            end = len(data) if end < 0 else end
            place = f"@{offset + begin}" if self.is_range else str(line)
            yield place, data[begin:end].removesuffix(b"\r")
            begin, line = end + 1, line + 1


def _parse_text(text_key: str, line: bytes) -> input_records.Parsed:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, f"the record is {input_records.describe_not_utf8(error)}"


def _parse_json(line: bytes) -> input_records.Parsed:
    # joined files have byte order marks between lines, and JSON text sequences a sign before each
    line = line.removeprefix(input_records.BYTE_ORDER_MARK).removeprefix(_RECORD_SEPARATOR)
    fields, problem = parse_object(line)
    if problem is None or not problem.startswith((NOT_JSON, NOT_AN_OBJECT)):
        return fields, problem
    if line.lstrip().startswith(b"["):
        return None, f"{problem}. {_ONE_PER_LINE}, not a list, or set format (--format) to json"
    if problem.startswith(NOT_AN_OBJECT):
        return None, f"{problem}. {_ONE_PER_LINE}"
    advice = _advise(line)
    return None, f"{problem}. {advice}" if advice else problem


def _advise(line: bytes) -> str | None:
    """Return how to repair a line of invalid JSON, or None if that is not clear."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        begins, rest = error.doc.lstrip().startswith("{"), error.doc[error.pos :].strip()
    except (ValueError, RecursionError):
        return None
    if begins and not rest:
        return f"{_ONE_PER_LINE} if objects span several lines: {_JQ}"
    if rest == ",":
        return "Remove the comma after the object"
    return f"{_ONE_PER_LINE}: {_JQ}" if begins and rest.startswith(("{", "\x1e")) else None


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
) -> Iterator[tuple[bytes, str | None, int]]:
    """Yield (whole lines, why what follows them is not read or None, size in bytes) of each block.

    A line above the limit of a record ends its block. The block's size includes this line, and its
    data does not. A line that is cut off by damage is dropped.
    """
    parts: list[bytes] = []
    filled = dropped = 0
    open_bytes = 0  # size of the last line so far, whose end was not found yet
    damage = None
    try:
        for chunk in chunks:
            start = chunk.find(b"\n") + 1
            open_bytes += start or len(chunk)
            if open_bytes > input_files.MOST_RECORD_BYTES:
                if not dropped:
                    parts, dropped = _drop_last_line(parts)
                dropped += start or len(chunk)
                if not start:
                    continue
                data = b"".join(parts)
                yield data, _TOO_LONG, len(data) + dropped
                parts, filled, dropped = [], 0, 0
            else:
                start = 0
            # a block ends at the first line end after `block_bytes`
            while (cut := chunk.find(b"\n", start + max(0, block_bytes - 1 - filled)) + 1) > 0:
                data = b"".join([*parts, chunk[start:cut]])
                yield data, None, len(data)
                start, parts, filled = cut, [], 0
            parts.append(chunk[start:])
            filled += len(chunk) - start
            if (last := chunk.rfind(b"\n") + 1) > 0:
                open_bytes = len(chunk) - last
    except input_files.DamagedError as error:
        damage = str(error)
        if not dropped:
            parts, _ = _drop_last_line(parts)
    pending = b"".join(parts)
    if dropped:
        yield pending, _TOO_LONG, len(pending) + dropped
        pending = b""
    if pending or damage:
        yield pending, damage, len(pending)


def _drop_last_line(parts: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return (the whole lines of consecutive bytes, the size of the unfinished line after them)."""
    pending = b"".join(parts)
    whole = pending[: pending.rfind(b"\n") + 1]
    return [whole], len(pending) - len(whole)


try:
    import orjson
except ImportError:  # orjson has no wheel for some platforms
    orjson = None  # type: ignore[assignment]


def parse_object(data: bytes) -> input_records.Parsed:
    """Parse a JSON object. Return (its fields, None), or (None, the problem).

    orjson is several times faster. It refuses some JSON that the standard library accepts, such as
    NaN and unpaired surrogates, and reads an integer beyond 64 bits as a float. The standard
    library parses the objects that orjson refuses or may read differently, and describes what is
    wrong with an invalid object.
    """
    if (fields := _parse_quickly(data)) is not None:
        return fields, None
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return None, f"the record is {input_records.describe_not_utf8(error)}"
    except json.JSONDecodeError as error:
        return (
            None,
            f"{NOT_JSON} ({input_records.describe_not_json(error)} at column {error.colno})",
        )
    except (ValueError, RecursionError) as error:
        return None, f"{NOT_JSON} ({error})"
    if isinstance(value, dict):
        return value, None
    return None, f"{NOT_AN_OBJECT}, but {input_records.name_kind(value)}"


def _parse_quickly(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a JSON object, or None if the standard library must parse it."""
    if orjson is None:
        return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict and _are_equal(value.values(), _MAX_DEPTH) else None


def _are_equal(values: Any, depth: int) -> bool:
    """Whether the standard library is certain to parse the same values."""
    for value in values:
        kind = type(value)
        if kind in _ALWAYS_EQUAL:
            continue
        if kind is float:
            if abs(value) >= _INTEGERS_FIT_BELOW:
                return False  # it may be an integer beyond 64 bits
        elif depth == 0 or not _are_equal(value.values() if kind is dict else value, depth - 1):
            return False
    return True
