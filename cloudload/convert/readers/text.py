"""Whole text files, one document each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudload.convert.input_files import DamagedError, InputFile, read_decompressed
from cloudload.convert.records import (
    BYTE_ORDER_MARK,
    BlockStart,
    InputBlock,
    Record,
    describe_not_utf8,
    sum_bytes,
)


@dataclass(frozen=True)
class TextUnit:
    """A group of files. The process that reads their records opens them."""

    group: tuple[InputFile, ...]

    @property
    def name(self) -> str:
        return self.group[0].name

    @property
    def size(self) -> int | None:
        return sum_bytes(self.group)

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self.group

    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        yield TextBlock(self.group, start, sum_bytes(self.group))


@dataclass(frozen=True)
class TextBlock:
    """All files of a unit, read as one block."""

    group: tuple[InputFile, ...]
    start: BlockStart
    input_bytes: int

    def records(self, text_key: str) -> Iterator[Record]:
        for file in self.group:
            where = file.display_name
            try:
                data = b"".join(read_decompressed(file)).removeprefix(BYTE_ORDER_MARK)
                yield Record(where, file.name, {text_key: data.decode()})
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                yield Record(f"{where}:{line}", file.name, None, describe_not_utf8(error))
            except DamagedError as error:
                yield Record(where, file.name, None, str(error))
