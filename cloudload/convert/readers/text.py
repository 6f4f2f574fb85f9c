"""Whole text files, a document each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudload.convert.input_files import DamagedError, SourceFile, read_uncompressed, shown
from cloudload.convert.records import (
    BYTE_ORDER_MARK,
    InputBlock,
    Record,
    Start,
    not_utf8,
    sum_bytes,
)

# ---------------------------------------------------------------- whole files


@dataclass(frozen=True)
class TextUnit:
    """Some files, each of them a document; they are read where their records are."""

    group: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        return self.group[0].name

    @property
    def size(self) -> int | None:
        return sum_bytes(self.group)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.group

    def blocks(self, start: Start, block_bytes: int, fields: Sequence[str]) -> Iterator[InputBlock]:
        yield TextBlock(self.group, start, sum_bytes(self.group))


@dataclass(frozen=True)
class TextBlock:
    """The files of a unit."""

    group: tuple[SourceFile, ...]
    start: Start
    input_bytes: int

    def records(self, text_key: str) -> Iterator[Record]:
        for file in self.group:
            where = shown(file)
            try:
                data = b"".join(read_uncompressed(file)).removeprefix(BYTE_ORDER_MARK)
                yield Record(where, file.name, {text_key: data.decode()})
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                yield Record(f"{where}:{line}", file.name, None, not_utf8(error))
            except DamagedError as error:
                yield Record(where, file.name, None, str(error))
