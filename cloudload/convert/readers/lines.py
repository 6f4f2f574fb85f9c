"""Files of JSON lines, or of a document a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudload.convert.input_files import (
    DamagedError,
    SourceFile,
    StoredBytes,
    read_uncompressed,
    shown,
)
from cloudload.convert.records import BYTE_ORDER_MARK, FileUnit, InputBlock, Record, Start, not_utf8


@dataclass(frozen=True)
class LinesUnit(FileUnit):
    """A file of JSON lines, or of a document a line."""

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[InputBlock]:
        counter = StoredBytes(start.stored)
        chunks = read_uncompressed(self.file, start.offset, counter)
        for data, damage in _whole_lines(chunks, block_bytes):
            end = Start(
                start.block + 1,
                start.offset + len(data),
                start.line + data.count(b"\n"),
                counter.bytes,
            )
            yield LinesBlock(self.file, start, end.stored - start.stored, data, damage)
            start = end


@dataclass(frozen=True)
class LinesBlock:
    """Whole lines, and the damage after them where the file is broken there."""

    file: SourceFile
    start: Start
    input_bytes: int
    data: bytes
    damage: str | None

    def records(self, text_key: str) -> Iterator[Record]:
        where, name = shown(self.file), self.file.name
        parse = _parse_json if self.file.format == "jsonl" else _parse_line
        for number, line in enumerate(_split_lines(self._text()), self.start.line):
            if self.file.format == "jsonl" and not line.strip():
                continue
            fields, problem = parse(line, text_key)
            yield Record(f"{where}:{number}", f"{name}:{number}", fields, problem)
        if self.damage:
            number = self.start.line + self.data.count(b"\n")
            yield Record(f"{where}:{number}", f"{name}:{number}", None, self.damage)

    def _text(self) -> bytes:
        return self.data.removeprefix(BYTE_ORDER_MARK) if self.start.block == 0 else self.data


def _split_lines(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        yield (
            data[position : end - 1]
            if data[end - 1 : end] == b"\r" and end > position
            else data[position:end]
        )
        position = end + 1


def _parse_line(line: bytes, text_key: str) -> tuple[Mapping[str, Any] | None, str | None]:
    try:
        return {text_key: line.decode()}, None
    except UnicodeDecodeError as error:
        return None, not_utf8(error)


def _parse_json(line: bytes, _: str) -> tuple[Mapping[str, Any] | None, str | None]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return None, not_utf8(error)
    except json.JSONDecodeError as error:
        hint = (
            "; write one object a line, not a list of them"
            if line.lstrip().startswith(b"[")
            else ""
        )
        return None, f"broken JSON ({error.msg} at column {error.colno}){hint}"
    except (ValueError, RecursionError) as error:
        return None, f"broken JSON ({error})"
    if isinstance(value, dict):
        return value, None
    return None, f"a JSON {type(value).__name__}, not an object; write one object a line"


def _whole_lines(chunks: Iterator[bytes], block_bytes: int) -> Iterator[tuple[bytes, str | None]]:
    """Cut at the first line end at or after `block_bytes`, however the chunks fall; what damage
    leaves of a line is dropped."""
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
