"""What readers give: units of input, their blocks, and the records of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cloudload.convert.input_files import SourceFile

DEFAULT_BLOCK_BYTES = 8 << 20
MAX_ROWS_A_BLOCK = 8192
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """One record: where it lies for people, its name as an id, and its fields or what is wrong with
    it."""

    where: str
    name: str
    fields: Mapping[str, Any] | None
    problem: str | None = None


@dataclass(frozen=True)
class Start:
    """Where a block begins in its unit: its ordinal, uncompressed byte, line or row, and the stored
    bytes read before it."""

    block: int = 0
    offset: int = 0
    line: int = 1
    stored: int = 0


class InputBlock(Protocol):
    """A piece of work: records, read in any process."""

    @property
    def start(self) -> Start: ...
    @property
    def input_bytes(self) -> int: ...
    def records(self, text_key: str) -> Iterator[Record]: ...


class Unit(Protocol):
    """A part of the input that can be read on its own; its name and size (bytes, or rows) tell it
    from another."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def files(self) -> tuple[SourceFile, ...]: ...
    def blocks(
        self, start: Start, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]: ...


def sum_bytes(files: Iterable[SourceFile]) -> int:
    """The stored bytes of the files whose size is known."""
    return sum(file.bytes or 0 for file in files)


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class FileUnit:
    file: SourceFile

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int | None:
        return self.file.bytes

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (self.file,)


def not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start})"
