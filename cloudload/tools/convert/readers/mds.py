"""Shards of an MDS dataset, one document per sample.

A shard is checked against its index entry, as in the loader, and mapped into memory. A local,
uncompressed shard is mapped in place. Any other shard is copied to a temporary file, which exists
while its blocks are read. A block is a run of samples.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from cloudload.config import choices
from cloudload.data import (
    Shard,
    check_hash,
    decode_value,
    download_shard,
    shard_entries,
    urls,
)
from cloudload.errors import ConvertError, DatasetError
from cloudload.system import temp_files
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record

_READABLE = {"str", "bytes", "json", *shard_entries.FIXED_FORMATS}


@dataclass(frozen=True, slots=True)
class MdsUnit(input_records.FileUnit):
    """A shard of an MDS dataset. `file.shard` is its index entry."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        info = self.file.shard
        assert info is not None
        columns = _choose_columns(self.file, info, fields)
        with open_shard(self.file, info) as shard:
            places = [shard.column_index(column.name) for column in columns]
            values, size, first = list[tuple[bytes, ...]](), 0, start.line - 1
            for sample in range(first, info.samples):
                values.append(tuple(shard.read_bytes(sample, place) for place in places))
                size += sum(map(len, values[-1]))
                is_last = sample + 1 == info.samples
                if size >= block_bytes or len(values) == input_records.MAX_BLOCK_ROWS or is_last:
                    stored = (self.file.bytes or 0) * (sample + 1) // info.samples
                    read = stored - start.stored
                    yield MdsBlock(self.file, start, read, columns, tuple(values))
                    start = BlockStart(0, sample + 2, stored)
                    values, size = [], 0


@contextmanager
def open_shard(file: input_files.InputFile, info: shard_entries.ShardInfo) -> Iterator[Shard]:
    """Fetch and check a shard. It stays readable after the context.

    Raises `ConvertError` if it is damaged or cannot be copied, and `StoreError` if it cannot be
    read, or has changed since it was listed.
    """
    try:
        with (
            temp_files.explained_full_disk(),
            tempfile.TemporaryDirectory(prefix="cloudload-") as folder,
        ):
            path, fault = _fetch(file, info, Path(folder))
            if fault is not None:
                raise DatasetError(f"{file.display_name} {fault}")
            yield Shard(path, info)
    except DatasetError as error:
        raise ConvertError(str(error)) from error
    except OSError as error:
        raise ConvertError(
            f"cannot read {file.display_name}: {error}. Check the file. If the disk is full, free "
            "space for a copy of the file, or set TMPDIR to a folder on another disk"
        ) from error


def _fetch(
    file: input_files.InputFile, info: shard_entries.ShardInfo, folder: Path
) -> tuple[Path, str | None]:
    """Return the path of the raw shard, and a description of its fault, or None if valid."""
    if urls.is_local(file.url) and info.zipped is None:
        path = urls.local_path(file.url)
        return path, check_hash(path, info)
    path = folder / "shard.mds"
    with path.open("w+b") as target:
        found = download_shard(
            file.long_location,
            info,
            cast(BinaryIO, target),
            checks_hash=True,
            count_bytes=lambda _: None,
        )
    return path, found.fault


def _choose_columns(
    file: input_files.InputFile, info: shard_entries.ShardInfo, fields: Fields
) -> tuple[shard_entries.Column, ...]:
    """Return the columns to read.

    Raises `ConvertError` if no column has the document, or if a column to read cannot be decoded.
    """
    names = [column.name for column in info.columns]
    if not input_records.has_field(names, fields[0]):
        shown = ", ".join(f"{column.name} ({column.encoding})" for column in info.columns)
        advice = input_records.advise_on_text(names) if fields.has_text else "Correct keep (--keep)"
        raise ConvertError(
            f"{file.display_name} has no column {fields[0]!r}. Its columns are: {shown}. {advice}. "
            "If the dataset contains token IDs, do not convert it, but pass it to CloudLoader with "
            "tokens_key"
        )
    wanted = [column for column in info.columns if input_records.is_read(column.name, fields)]
    for column in wanted:
        if column.encoding not in _READABLE:
            raise ConvertError(
                f"column {column.name!r} of {file.display_name} has the encoding "
                f"{column.encoding!r}, which the converter cannot copy. Leave the column out. The "
                "converter can copy columns of str, bytes, json, and numbers"
            )
    return tuple(wanted)


@dataclass(frozen=True)
class MdsBlock(input_records.FileBlock):
    """Consecutive samples. `values` has the encoded value of each of `columns`, by sample."""

    columns: tuple[shard_entries.Column, ...]
    values: tuple[tuple[bytes, ...], ...]

    def column_encodings(self) -> Mapping[str, str]:
        return {column.name: column.encoding for column in self.columns}

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for line, values in enumerate(self.values, self.start.line):
            place = str(line)
            valid = [
                input_records.make_utf8(
                    value, errors if column.encoding == "str" else choices.STRICT
                )
                for column, value in zip(self.columns, values, strict=True)
            ]
            try:
                fields = self._decode([value for value, _ in valid])
                is_replaced = any(is_replaced for _, is_replaced in valid)
                yield Record(self.file, place, fields, is_replaced=is_replaced)
            except (ValueError, RecursionError, struct.error) as error:
                problem = f"a value does not fit its column ({error})"
                yield self.record(place, None, problem)

    def _decode(self, values: Sequence[bytes]) -> dict[str, Any]:
        return {
            column.name: decode_value(column.encoding, value)
            for column, value in zip(self.columns, values, strict=True)
        }
