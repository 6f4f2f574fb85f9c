"""The output of readers: units of input, the blocks of a unit, and the records of a block.

    units    a file of lines │ a Parquet file │ a group of whole text files │ rows of a dataset
    blocks   8 MiB of whole lines │ a batch of rows │ a group of files
    records  one per line, row or file: its fields, or its problem

A block depends only on the data and `block_bytes`, never on the process that reads it, the time, or
the chunks that the store returns. One process makes all blocks, in order; any process may read
their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cloudload.convert.input_files import InputFile

DEFAULT_BLOCK_BYTES = 8 << 20
MAX_BLOCK_ROWS = 8192
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """One record: its fields, or the problem with it."""

    where: str
    """The record's location, for messages."""
    name: str
    """The ID to use if the record has no ID field."""
    fields: Mapping[str, Any] | None
    problem: str | None = None


@dataclass(frozen=True)
class BlockStart:
    """Where a block begins in its unit; readers can start here. The journal stores all fields."""

    block: int = 0
    """Index of the block in its unit."""
    offset: int = 0
    """Offset of its first byte in the decompressed file."""
    line: int = 1
    """Number of its first line or row, counting from 1."""
    stored: int = 0
    """Stored bytes of the file that were read before it."""


class InputBlock(Protocol):
    """The unit of work: records that any process can read."""

    @property
    def start(self) -> BlockStart: ...
    @property
    def input_bytes(self) -> int: ...
    def records(self, text_key: str) -> Iterator[Record]: ...


class InputUnit(Protocol):
    """A part of the input that can be read separately, identified by its name and size."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def files(self) -> tuple[InputFile, ...]: ...
    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]: ...


@dataclass(frozen=True)
class FileUnit:
    """A unit of one file."""

    file: InputFile

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int | None:
        return self.file.bytes

    @property
    def files(self) -> tuple[InputFile, ...]:
        return (self.file,)


def sum_bytes(files: Iterable[InputFile]) -> int:
    """The sum of the files' stored bytes; a file of unknown size counts 0."""
    return sum(file.bytes or 0 for file in files)


def describe_not_utf8(error: UnicodeDecodeError) -> str:
    """Describe the problem of a record that is not UTF-8."""
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start})"
