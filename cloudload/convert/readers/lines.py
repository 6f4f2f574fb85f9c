"""Files of JSON lines, or of one document per line.

    file     {"text": "a"}⏎{"text": "b"}⏎{"text": "c"}⏎          block_bytes = 15
    blocks   {"text": "a"}⏎{"text": "b"}⏎ │ {"text": "c"}⏎

A block ends at the first line end that gives it at least `block_bytes`, or at the end of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudload.convert.input_files import (
    DamagedError,
    InputFile,
    StoredByteCounter,
    read_decompressed,
)
from cloudload.convert.records import (
    BYTE_ORDER_MARK,
    BlockStart,
    FileUnit,
    InputBlock,
    Record,
    describe_not_utf8,
)

_NOT_JSON, _NOT_AN_OBJECT = "invalid JSON", "a JSON"
_ONE_PER_LINE = "write one object per line"
_JQ = "jq -c . FILE"


@dataclass(frozen=True)
class LinesUnit(FileUnit):
    """A file of lines, cut into blocks of whole lines."""

    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        counter = StoredByteCounter(start.stored)
        chunks = read_decompressed(self.file, start.offset, counter)
        for data, damage in _cut_at_line_ends(chunks, block_bytes):
            end = BlockStart(
                start.block + 1,
                start.offset + len(data),
                start.line + data.count(b"\n"),
                counter.bytes,
            )
            yield LinesBlock(self.file, start, end.stored - start.stored, data, damage)
            start = end


@dataclass(frozen=True)
class LinesBlock:
    """Whole lines of a file. `damage` describes the damage after them, if any."""

    file: InputFile
    start: BlockStart
    input_bytes: int
    data: bytes
    damage: str | None

    def records(self, text_key: str) -> Iterator[Record]:
        where, name = self.file.display_name, self.file.name
        is_json = self.file.format != "lines"
        data = self.data.removeprefix(BYTE_ORDER_MARK) if self.start.block == 0 else self.data
        for number, line in enumerate(_split_lines(data), self.start.line):
            if is_json and not line.strip():
                continue
            fields, problem = _parse_json(line) if is_json else _parse_text(line, text_key)
            yield Record(f"{where}:{number}", f"{name}:{number}", fields, problem)
        if self.damage:
            number = self.start.line + self.data.count(b"\n")
            yield Record(f"{where}:{number}", f"{name}:{number}", None, self.damage)


def _split_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


_Parsed = tuple[Mapping[str, Any] | None, str | None]


def _parse_text(line: bytes, text_key: str) -> _Parsed:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, describe_not_utf8(error)


def _parse_json(line: bytes) -> _Parsed:
    fields, problem = parse_object(line)
    if problem is None or not problem.startswith((_NOT_JSON, _NOT_AN_OBJECT)):
        return fields, problem
    if line.lstrip().startswith(b"["):
        return None, f"{problem}; {_ONE_PER_LINE}, not a list of them, or set the format json"
    if problem.startswith(_NOT_AN_OBJECT):
        return None, f"{problem}; {_ONE_PER_LINE}"
    if _continues(line):
        return None, f"{problem}; if the object continues on the next line, {_ONE_PER_LINE}: {_JQ}"
    return None, problem


def _continues(line: bytes) -> bool:
    """Whether a line that is not JSON may begin an object of several lines."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return line.lstrip().startswith(b"{") and error.pos >= len(error.doc.rstrip())
    except (ValueError, RecursionError):
        return False
    return False


def parse_object(data: bytes) -> _Parsed:
    """Parse a JSON object. Return (its fields, None), or (None, the problem)."""
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return None, describe_not_utf8(error)
    except json.JSONDecodeError as error:
        return None, f"{_NOT_JSON} ({error.msg} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        return None, f"{_NOT_JSON} ({error})"
    if isinstance(value, dict):
        return value, None
    return None, f"{_NOT_AN_OBJECT} {type(value).__name__}, not an object"


def _cut_at_line_ends(
    chunks: Iterator[bytes], block_bytes: int
) -> Iterator[tuple[bytes, str | None]]:
    """Yield (whole lines, description of the damage after them or None) for each block.

    Drops a line that is cut short by damage.
    """
    pending, searched, damage = bytearray(), block_bytes - 1, None
    try:
        for chunk in chunks:
            pending += chunk
            while (cut := pending.find(b"\n", searched)) >= 0:
                yield bytes(pending[: cut + 1]), None
                del pending[: cut + 1]
                searched = block_bytes - 1
            searched = max(searched, len(pending))
    except DamagedError as error:
        damage = str(error)
        del pending[pending.rfind(b"\n") + 1 :]
    if pending or damage:
        yield bytes(pending), damage
