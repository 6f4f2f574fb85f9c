"""Parquet files, one document per row.

A block is a batch of up to 8,192 rows of one row group. The number of rows depends only on the
file's metadata and `block_bytes`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudload.convert.input_files import DamagedError, InputFile, read_decompressed
from cloudload.convert.readers.arrow_block import ArrowBlock, check_pyarrow, choose_columns
from cloudload.convert.records import (
    MAX_BLOCK_ROWS,
    BlockStart,
    FileUnit,
    InputBlock,
)
from cloudload.errors import ConvertError
from cloudload.storage.base import Retry
from cloudload.storage.objects import download_object
from cloudload.storage.urls import is_local, local_path

_LONG_DOWNLOAD = Retry(deadline_s=3600.0)


@dataclass(frozen=True)
class ParquetUnit(FileUnit):
    """A Parquet file. Only the columns that the conversion reads are decoded."""

    def blocks(
        self, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        check_pyarrow(self.name)
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory(prefix="cloudload-") as folder:
            path = _local_copy(self.file, Path(folder))
            try:
                with pyarrow.parquet.ParquetFile(path) as parquet:
                    yield from self._batches(parquet, start, block_bytes, fields)
            except (pyarrow.ArrowException, OSError) as error:
                reason = str(error).rstrip(".\n")
                raise ConvertError(
                    f"{self.file.display_name} cannot be read as Parquet: {reason}. Repair the "
                    "file or leave it out"
                ) from error

    def _batches(
        self, parquet: Any, start: BlockStart, block_bytes: int, fields: Sequence[str]
    ) -> Iterator[InputBlock]:
        rows, size = parquet.metadata.num_rows, self.file.bytes or 0
        paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        columns, schema = choose_columns(parquet.schema_arrow.names, paths, fields)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        row_bytes = max(1, sum(group.total_byte_size for group in groups) // max(1, rows))
        batch_rows = min(max(1, block_bytes // row_bytes), MAX_BLOCK_ROWS)
        ordinal, row = 0, 1
        for number, group in enumerate(groups):
            if row + group.num_rows <= start.line:
                ordinal, row = ordinal - (-group.num_rows // batch_rows), row + group.num_rows
                continue
            for batch in parquet.iter_batches(batch_rows, row_groups=[number], columns=columns):
                stored, end = size * (row - 1) // rows, size * (row - 1 + batch.num_rows) // rows
                if row >= start.line:
                    at = BlockStart(ordinal, 0, row, stored)
                    yield ArrowBlock.of(self.file, at, end - stored, batch, schema)
                ordinal, row = ordinal + 1, row + batch.num_rows


def _local_copy(file: InputFile, folder: Path) -> Path:
    """Return a local path to the decompressed file, because a Parquet reader must seek.

    A local, uncompressed file is used as it is. Any other is copied to `folder`. Raises
    `ConvertError` if it cannot be decompressed or copied, and `StoreError` if it cannot be read.
    """
    if file.url != "-" and is_local(file.url) and file.compression is None:
        return local_path(file.url)
    path = folder / "file.parquet"
    try:
        with path.open("w+b") as target:
            if file.url == "-" or file.compression:
                target.writelines(read_decompressed(file))
            else:
                download_object(file.url, target, _LONG_DOWNLOAD)
    except DamagedError as error:
        raise ConvertError(
            f"{file.display_name}: {error}. Repair the file or leave it out"
        ) from error
    except OSError as error:
        raise ConvertError(
            f"cannot copy {file.display_name} to {folder}: {error}. Free disk space there, or set "
            "TMPDIR to a folder on another disk"
        ) from error
    return path
