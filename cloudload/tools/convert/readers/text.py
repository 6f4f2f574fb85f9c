"""Whole text files, one document each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, urls
from cloudload.system import map_in_order, settle_future
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record

_NUM_THREADS = 16


@dataclass(frozen=True)
class TextUnit:
    """A group of text files. The process that reads the records opens the files."""

    group: tuple[input_files.InputFile, ...]

    @property
    def name(self) -> str:
        return self.group[0].name

    @property
    def size(self) -> int | None:
        return input_records.sum_bytes(self.group)

    @property
    def files(self) -> tuple[input_files.InputFile, ...]:
        return self.group

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        yield TextBlock(self.group, start, input_records.sum_bytes(self.group))


@dataclass(frozen=True)
class TextBlock:
    """All files of a unit, read as one block."""

    group: tuple[input_files.InputFile, ...]
    start: BlockStart
    input_bytes: int

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for file, read in self._read_all():
            try:
                data, is_replaced = input_records.make_utf8(
                    read().removeprefix(file_content.BYTE_ORDER_MARK), errors
                )
                yield Record(file, "", {text_key: data.decode()}, is_replaced=is_replaced)
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                problem = f"the file is {file_kinds.describe_not_utf8(error)}"
                yield Record(file, str(line), None, problem, error.object)
            except file_content.DamagedError as error:
                yield Record(file, "", None, str(error))

    def _read_all(self) -> Iterator[tuple[input_files.InputFile, Callable[[], bytes]]]:
        """Yield each file and a function that returns its data, or raises its error.

        Files in stores are read by several threads, because a request takes longer than reading a
        small file.
        """
        if all(urls.is_local(file.url) for file in self.group):
            yield from ((file, partial(input_files.read_whole, file)) for file in self.group)
            return
        outcomes = map_in_order(_attempt, self.group, _NUM_THREADS, "cloudload-text")
        for file, outcome in zip(self.group, outcomes, strict=True):
            yield file, outcome.result


def _attempt(file: input_files.InputFile) -> Future[bytes]:
    """Read a file, and return its data or error as a `Future`, which raises the error later."""
    outcome: Future[bytes] = Future()
    settle_future(outcome, input_files.read_whole, (file,))
    return outcome
