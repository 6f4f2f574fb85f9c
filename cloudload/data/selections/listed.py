"""Files that list samples by shard and index: Parquet, JSON Lines, or CSV.

    shard,index                      {"shard": "shard.00003.mds", "index": 17}
    shard.00003.mds,17
    3,18                             a shard may be its index in the dataset, too

The index is that of the sample within its shard. Files are small, so they are read at once.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.data import file_kinds
from cloudload.data.mds.dataset import Dataset
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.system import Flags, Ints

SHARD, INDEX = "shard", "index"
FORMATS = ("parquet", "jsonl", "csv")
MOST_BYTES = 1 << 28
_MOST_NAMED = 20
_MOST_DIGITS = 30  # Python refuses to read thousands of digits


class MissingColumnError(DatasetError):
    """A file lacks a column, or a value in it."""


@dataclass(frozen=True)
class ListedSamples:
    """Samples that a file lists."""

    location: Location
    shards: Sequence[Any]
    """The shard of each sample: its name, or its index in the dataset."""
    indices: Sequence[Any]
    """The index of each sample in its shard."""
    digest: str
    """SHA-256 of the file, in hex digits."""

    def find(self, dataset: Dataset) -> Ints:
        """The samples' indices in a dataset, ascending and distinct: int64 [samples].

        Raises `DatasetError` for a shard or an index that the dataset does not have.
        """
        sizes = dataset.table.samples
        starts = np.cumsum(sizes) - sizes
        numbers = (
            _number_shards(dataset) if any(isinstance(each, str) for each in self.shards) else {}
        )
        found = np.empty(len(self.shards), np.int64)
        for row, (shard, index) in enumerate(zip(self.shards, self.indices, strict=True)):
            known = numbers.get(shard) if isinstance(shard, str) else None
            number = _as_number(shard) if known is None else known
            if number is None or not 0 <= number < len(sizes):
                raise self._wrong(row, f"the shard {shard!r:.200}, but {dataset.location} has none")
            within = _as_number(index)
            if within is None or not 0 <= within < sizes[number]:
                fault = f"the index {index!r:.200}, but the shard {shard!r:.200} has "
                raise self._wrong(row, f"{fault}{int(sizes[number]):,} samples")
            found[row] = starts[number] + within
        return np.unique(found)

    def _wrong(self, row: int, fault: str) -> DatasetError:
        return DatasetError(
            f"row {row + 1:,} of {self.location} has {fault}. Give the name or the index of a "
            "shard of this dataset, and the index of a sample in it, from 0"
        )


def is_listed(name: str) -> bool:
    """Whether a file lists samples, according to its name."""
    extension, compression = file_kinds.split_name(name)
    return compression is None and file_kinds.FORMATS_BY_EXTENSION.get(extension) in FORMATS


def read_listed(location: Location) -> ListedSamples:
    """Read a file of samples.

    Raises `StoreError` if it cannot be read, `MissingColumnError` if it lacks a column, and
    `DatasetError` if it has more than 256 MiB or is damaged.
    """
    data = location.read(MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise DatasetError(
            f"{location} has more than {MOST_BYTES >> 20} MiB. Compile the selection once, with "
            "cloudload select"
        )
    shards, indices = read_listed_columns(location, data, (SHARD, INDEX))
    return ListedSamples(location, shards, indices, hashlib.sha256(data).hexdigest())


def read_listed_columns(
    location: Location, data: bytes, names: Sequence[str]
) -> list[Sequence[Any]]:
    """Read columns of a table. Raises the errors of `read_listed`."""
    extension, _ = file_kinds.split_name(location.url)
    kind = file_kinds.FORMATS_BY_EXTENSION.get(extension)
    if kind not in FORMATS:
        raise DatasetError(
            f"{location} is no Parquet, JSON Lines or CSV file, according to its name. Write the "
            f"columns {' and '.join(names)} to such a file"
        )
    try:
        if kind == "parquet":
            return _read_parquet(location, data, names)
        text = data.decode("utf-8-sig")
        if kind == "csv":
            rows: list[Any] = list(csv.DictReader(io.StringIO(text, newline="")))
        else:
            # not `splitlines`, because JSON may have other ends of lines, such as U+2028, in text
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, csv.Error, RecursionError) as error:
        raise DatasetError(
            f"{location} cannot be read as {kind}: {error!r:.300}. Repair the file"
        ) from error
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or any(row.get(name) is None for name in names):
            has = list(row) if isinstance(row, dict) else []
            raise _lacking(location, f"row {number + 1:,} of ", names, has)
    return [[row[name] for row in rows] for name in names]


def _read_parquet(location: Location, data: bytes, names: Sequence[str]) -> list[Sequence[Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(
            f"{location} is a Parquet file, which cloudload reads with pyarrow. Run: pip install "
            "pyarrow"
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        has = file.schema_arrow.names
        if not set(names) <= set(has):
            raise _lacking(location, "", names, has)
        if twice := [name for name in names if has.count(name) > 1]:
            raise ValueError(f"two columns are named {twice[0]!r}")
        table = file.read(list(names))
    except (pyarrow.ArrowException, OSError) as error:  # OSError for damaged pages and footers
        raise ValueError(str(error)) from error
    if any(table.column(name).null_count for name in names):
        raise _lacking(location, "a row of ", names, has)
    return [table.column(name).to_pylist() for name in names]


def _lacking(
    location: Location, where: str, names: Sequence[str], has: Sequence[str]
) -> MissingColumnError:
    columns = ", ".join(map(str, has[:_MOST_NAMED])) or "none"
    return MissingColumnError(
        f"{where}{location} lacks a value of {' or '.join(names)}. Its columns are: {columns}"
    )


def _number_shards(dataset: Dataset) -> dict[str, int]:
    """The index of each shard by its name, as it is stored and without compression."""
    numbers = {}
    for number, shard in enumerate(dataset.table):
        numbers[shard.raw.name] = numbers[shard.stored.name] = number
    return numbers


def _as_number(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= _MOST_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flags_of(samples: Ints, start: int, stop: int) -> Flags:
    """Whether each of the samples [start, stop) is in `samples`, which is ascending: bool."""
    flags = np.zeros(stop - start, np.bool_)
    first, last = np.searchsorted(samples, [start, stop])
    flags[samples[first:last] - start] = True
    return flags
