"""Rows of a `datasets` object, or of any iterable of mappings or strings; one document per row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudload.config import choices
from cloudload.data import contains_secrets, record_values, redact
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record

_ITEM_BYTES = 8


@dataclass(frozen=True)
class RowsUnit:
    """A `datasets` object, or any iterable of mappings or strings."""

    name: str
    rows: Any

    @property
    def size(self) -> int | None:
        try:
            return len(self.rows)
        except TypeError:
            return None

    @property
    def files(self) -> tuple[input_files.InputFile, ...]:
        return ()

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        rows = _select(self.rows, fields)
        skipped = start.line - 1
        if skipped:
            rows = (
                rows.skip(skipped)
                if hasattr(rows, "skip")
                else itertools.islice(rows, skipped, None)
            )
        rows = self._iterate(rows)
        if hasattr(self.rows, "features"):  # a `datasets` object, whose rows are Arrow structs
            rows = map(record_values.leave_out_absent, rows)
        for batch in _batched(rows, block_bytes, fields):
            yield RowsBlock(self.name, start, 0, batch)
            start = BlockStart(0, start.line + len(batch))

    def _iterate(self, rows: Any) -> Iterator[Any]:
        try:
            yield from rows
        except (GeneratorExit, ConvertError):
            raise
        except Exception as error:
            raise ConvertError(
                f"cannot read the rows of {self.name}: {type(error).__name__}: "
                f"{redact(str(error))}. Fix the cause, and run again to resume"
            ) from (None if contains_secrets(error) else error)


def _select(rows: Any, fields: Sequence[str]) -> Any:
    """Select only the columns that the conversion reads, if possible, to save decoding time."""
    names = getattr(rows, "column_names", None) or ()
    wanted = [name for name in names if input_records.is_read(name, fields)]
    can_select = input_records.has_field(names, fields[0]) and hasattr(rows, "select_columns")
    return rows.select_columns(wanted) if can_select else rows


def _batched(
    rows: Iterator[Any], block_bytes: int, fields: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield batches of rows, without the values of fields that are not in `fields`.

    A batch ends at 8,192 rows, or when its values have some `block_bytes`: the characters of
    strings, at any depth, and 8 bytes for each item of a list.
    """
    batch: list[Any] = []
    size = 0
    for row in rows:
        kept = row
        if isinstance(row, Mapping):
            kept = {name: row[name] for name in row if input_records.is_read(name, fields)}
            try:
                record_values.find_field(row, fields[0])
            except KeyError:
                kept = dict.fromkeys(record_values.list_fields(row)) | kept
        batch.append(kept)
        size += _size_of(kept)
        if size >= block_bytes or len(batch) == input_records.MAX_BLOCK_ROWS:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


def _size_of(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size_of, value.values()))
    if not isinstance(value, list | tuple):
        return int(getattr(value, "nbytes", 0))  # of an array
    inner = 0 if value and isinstance(value[0], int) else sum(map(_size_of, value))
    return inner + len(value) * _ITEM_BYTES


@dataclass(frozen=True)
class RowsBlock:
    """A batch of rows of a dataset or an iterable."""

    name: str
    start: BlockStart
    input_bytes: int
    rows: tuple[Any, ...]

    @property
    def display_name(self) -> str:
        """The dataset's name in messages."""
        return self.name

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for line, row in enumerate(self.rows, self.start.line):
            fields = {text_key: row} if isinstance(row, str) else row
            if isinstance(fields, Mapping):
                yield Record(self, str(line), fields)
            else:
                problem = f"a row is {type(row).__name__}, not a mapping or a string"
                yield Record(self, str(line), None, problem)
