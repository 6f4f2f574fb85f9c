"""Blocks of rows of Arrow tables, and local copies of files, for all formats that pyarrow reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, record_values, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import Record

_OFFSETS = {"string": "<i4", "large_string": "<i8"}
"""Maps each Arrow string type to the NumPy dtype of its offsets."""

_HEAD_BYTES = 64


def check_pyarrow(name: str) -> None:
    """Raise `ConvertError` if pyarrow, which reads the file `name`, is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConvertError(f"reading {name} needs pyarrow. Run: pip install pyarrow") from None


def choose_columns(
    file: input_files.InputFile, names: Iterable[str], paths: Iterable[str], fields: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns to read, and the names to list in an error about a missing document.

    `paths` are the names of all fields, with nested fields written as `meta.url`. If there is a
    field with the document, there are no names to list. Raises `ConvertError` if two columns to
    read have the same name.
    """
    columns = [name for name in names if input_records.is_read(name, fields)]
    if twice := sorted(name for name in {*columns} if columns.count(name) > 1):
        raise ConvertError(
            f"{file.display_name} has two columns named {twice[0]!r}. Rename one of them, or leave "
            "the file out"
        )
    schema = tuple(paths)
    has_document = any(f"{path}.".startswith(f"{fields[0]}.") for path in schema)
    return columns, () if has_document else schema


def join_batches(batches: Iterable[Any], block_bytes: int) -> Iterator[Any]:
    """Join consecutive batches until they have `block_bytes` or 8,192 rows."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= block_bytes or rows >= input_records.MAX_BLOCK_ROWS:
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[Any]) -> Iterator[Any]:
    import pyarrow

    yield from pyarrow.Table.from_batches(batches).combine_chunks().to_batches()


def cut_batches(batches: Iterable[Any], block_bytes: int) -> Iterator[Any]:
    """Cut each batch into slices of about `block_bytes`, which have at most 8,192 rows."""
    for batch in batches:
        row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = min(max(1, block_bytes // row_bytes), input_records.MAX_BLOCK_ROWS)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def skip_rows(batches: Iterable[Any], row: int, first: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, batch) for consecutive batches, of which the first begins at `row`.

    Rows count from 1. Leaves out the rows before `first`, also if a batch does not begin there,
    because another version of pyarrow cut the batches.
    """
    for batch in batches:
        stop = row + batch.num_rows
        if stop > first:
            skipped = max(0, first - row)
            yield row + skipped, batch.slice(skipped)
        row = stop


@dataclass(frozen=True)
class ArrowBlock(input_records.FileBlock):
    """A batch of rows that pyarrow read."""

    batch: Any
    """A `pyarrow.RecordBatch`."""
    schema: tuple[str, ...] = ()
    """The names of all columns, to list in errors, if no column has the text; otherwise empty."""

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        readers = dict(
            zip(
                self.batch.schema.names,
                map(record_values.value_reader, self.batch.columns),
                strict=True,
            )
        )
        for position in range(self.batch.num_rows):
            row = self.start.line + position
            fields: dict[str, Any] = dict.fromkeys(self.schema)
            is_replaced = False
            try:
                for name, read in readers.items():
                    try:
                        fields[name] = read(position)
                    except UnicodeDecodeError:
                        value = self.batch.column(name)[position]
                        if errors == choices.STRICT or not hasattr(value, "as_buffer"):
                            raise
                        data, is_replaced = input_records.make_utf8(
                            bytes(value.as_buffer()), errors
                        )
                        fields[name] = data.decode()
            except UnicodeDecodeError as error:
                problem = f"the record is {file_kinds.describe_not_utf8(error)}"
                yield self.record(row, None, problem)
            except Exception as error:  # pyarrow and Python raise various errors for such values
                yield self.record(row, None, f"the field {name!r} cannot be read ({error})")
            else:
                yield Record(self.file, str(row), fields, is_replaced=is_replaced)

    def utf8_records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        if (columns := self._list_values(text_key)) is None:
            yield from self.records(text_key, errors)
            return
        names = self.batch.schema.names
        for row, values in enumerate(zip(*columns, strict=True), self.start.line):
            yield self.record(row, dict(zip(names, values, strict=True)))

    def _list_values(self, text_key: str) -> list[Iterable[Any]] | None:
        """Return the values of each column, with texts as `Utf8`.

        Returns None if `records` must read the rows one by one.
        """
        import pyarrow

        names, columns = self.batch.schema.names, self.batch.columns
        if names.count(text_key) != 1:
            return None
        text = columns[names.index(text_key)]
        width = _OFFSETS.get(str(text.type))
        others = [column.type for column in columns if column is not text]
        if (
            width is None
            or text.null_count
            or not len(text)
            or any(map(record_values.has_times, others))
        ):
            return None
        try:
            self.batch.validate(full=True)
            return [
                _cut_texts(text, width) if name == text_key else column.to_pylist()
                for name, column in zip(names, columns, strict=True)
            ]
        except (pyarrow.ArrowException, ValueError):
            return None


def _cut_texts(text: Any, offset_type: str) -> Iterator[record_values.Utf8]:
    """Yield the values of an array of strings without nulls, which must be valid UTF-8."""
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, offset_type)[text.offset : text.offset + len(text) + 1].tolist()
    texts = memoryview(data or b"")
    for start, end in itertools.pairwise(ends):
        yield record_values.Utf8(texts[start:end])


def local_copy(
    file: input_files.InputFile,
    folder: Path,
    copy_part: Callable[[Path, BinaryIO], None] | None = None,
) -> Path:
    """Return a local path to the decompressed file.

    A local, uncompressed file is used in place. Any other file is copied to `folder`. If only a
    part of a file is needed, `copy_part` copies it. Raises `ConvertError` if the file cannot be
    decompressed or copied, or if it is not what its name says, and `StoreError` if it cannot be
    read.
    """
    if file.url != "-" and urls.is_local(file.url) and file.compression is None:
        with file.location.open(tag=file.tag) as stored:
            _refuse_misnamed(file, stored)
        return urls.local_path(file.url)
    path = folder / "file"
    try:
        with path.open("w+b") as target:
            if copy_part is not None:
                copy_part(path, target)
            elif file.url == "-" or file.compression:
                target.writelines(input_files.read_decompressed(file))
            else:
                file.long_location.download(target, tag=file.tag)
                input_files.check_read(file, target.tell())
            target.seek(0)
            _refuse_misnamed(file, target)
    except file_content.DamagedError as error:
        raise ConvertError(
            f"{file.display_name}: {error}. Repair the file or leave it out"
        ) from error
    except OSError as error:
        raise ConvertError(
            f"cannot copy {file.display_name} to {folder}: {error}. Free disk space there, or set "
            "TMPDIR to a folder on another disk"
        ) from error
    return path


def _refuse_misnamed(file: input_files.InputFile, stored: BinaryIO) -> None:
    """Raise `ConvertError` if a file's first bytes show that it is not what its name says."""
    content = stored.read(_HEAD_BYTES)
    if problem := file_kinds.describe_misnamed(content, None):
        raise ConvertError(f"{file.display_name}: {problem}")
