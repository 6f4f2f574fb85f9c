"""Parquet files, one document per row.

A block is up to 8,192 consecutive rows of one row group, about `block_bytes` in memory. At most 128
rows are decoded at a time, because the metadata do not tell how large a row is.

A range of a file contains the row groups whose first byte is in the range, so each row is read
once, wherever the file is cut. From a file in a store, only these row groups and the metadata are
copied.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.data import Location, footers
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock
from cloudload.tools.convert.readers import arrow_block

_MOST_DECODED = 128


@dataclass(frozen=True, slots=True)
class ParquetUnit(input_records.FileUnit):
    """A Parquet file, or a range of an uncompressed one.

    Only the columns that the conversion reads are decoded.
    """

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        arrow_block.check_pyarrow(self.name)
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory(prefix="cloudload-") as folder:
            try:
                part = self.range and partial(_copy_range, self.file, self.range)
                path = arrow_block.local_copy(self.file, Path(folder), part)
                _, metadata = footers.read_metadata(Location(str(path)), path.stat().st_size)
                with pyarrow.parquet.ParquetFile(path, metadata=metadata) as parquet:
                    yield from self._batches(parquet, start, block_bytes, fields)
            except (pyarrow.ArrowException, footers.FooterError, OSError) as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise ConvertError(
                    f"{self.file.display_name} cannot be read as Parquet: {reason}. Repair the "
                    "file or leave it out"
                ) from error

    def _batches(
        self, parquet: Any, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        rows, size, row = parquet.metadata.num_rows, self.file.bytes or 0, 1
        paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        columns, schema = arrow_block.choose_columns(
            self.file, parquet.schema_arrow.names, paths, fields
        )
        for index in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(index)
            is_elsewhere = self.range and not _is_within(group, self.range)
            if not is_elsewhere and row + group.num_rows > start.line:
                # few rows at a time, to bound memory, become blocks of about `block_bytes`
                batches = parquet.iter_batches(
                    _rows_to_decode(group, block_bytes), row_groups=[index], columns=columns
                )
                batches = arrow_block.join_batches(batches, block_bytes)
                batches = arrow_block.cut_batches(batches, block_bytes)
                for first, batch in arrow_block.skip_rows(batches, row, start.line):
                    # a batch counts as its share of the file's bytes, by rows
                    end = first - 1 + batch.num_rows
                    stored = size * (first - 1) // rows
                    at = BlockStart(0, first, stored)
                    yield arrow_block.ArrowBlock(
                        self.file, at, size * end // rows - stored, batch, schema
                    )
            row += group.num_rows


def _rows_to_decode(group: Any, block_bytes: int) -> int:
    row_bytes = max(1, int(group.total_byte_size) // max(1, int(group.num_rows)))
    return min(max(1, block_bytes // row_bytes), _MOST_DECODED)


def _first_byte(group: Any) -> int:
    return min(footers.find_span(group.column(index))[0] for index in range(group.num_columns))


def _is_within(group: Any, part: input_files.Range) -> bool:
    """Whether the first byte of a row group is in a range of the file."""
    return group.num_columns > 0 and part[0] <= _first_byte(group) < part[1]


def _copy_range(
    file: input_files.InputFile, part: input_files.Range, _: Path, target: BinaryIO
) -> None:
    """Copy the metadata and a range's row groups to their offsets in a sparse file."""
    size = file.bytes or 0
    tail, metadata = footers.read_metadata(file.location, size, file.tag)
    _write_at(target, size - len(tail), tail)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    spans = [
        footers.find_span(group.column(index))
        for group in groups
        if _is_within(group, part)
        for index in range(group.num_columns)
    ]
    if spans:
        first, stop = min(span[0] for span in spans), max(span[1] for span in spans)
        target.seek(first)
        file.long_location.download(target, start=first, stop=stop, tag=file.tag)
        _write_at(target, size - len(tail), tail)


def _write_at(target: BinaryIO, place: int, data: bytes) -> None:
    target.seek(place)
    target.write(data)
    target.flush()
