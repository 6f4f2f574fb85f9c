"""The index of an MDS dataset, and a corpus: several datasets read as one.

datasets   A: shards of 3, 2 samples      B: one shard of 4
samples    0 1 2 │ 3 4                    5 6 7 8
shards       0   │  1                        2
stream_starts 0, 5, 9                     shard_starts 0, 3, 5, 9
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cloudload.data.mds import shard_entries
from cloudload.data.mds.codecs import check_codec
from cloudload.data.mds.fingerprints import DATA, SAMPLES, find_beginning, fingerprint
from cloudload.data.mds.hashes import fastest_hash
from cloudload.data.mds.open_index import open_index
from cloudload.data.mds.shard_table import ShardTable
from cloudload.data.mds.virtual_index import ALL_COLUMNS, ColumnChoice, explain_large_groups
from cloudload.data.storage.locations import Location
from cloudload.data.storage.versions import UNKNOWN, Version
from cloudload.errors import DatasetError
from cloudload.system import Flags, Ints, map_in_order

_NUM_THREADS = 16


@dataclass(frozen=True)
class Dataset:
    """An MDS dataset, as described by its index."""

    location: Location
    """The folder of its objects, such as token lengths."""
    shards: Sequence[shard_entries.ShardInfo]
    """The shards, in order. They are a `ShardTable` if `open_corpus` opened the dataset."""
    index_hash: str
    """SHA-256 of `index.json`, in hex digits."""
    version: Version = field(default=UNKNOWN, compare=False)
    """The version of `index.json` that was read, as the store reported it."""
    read_s: float = field(default=math.inf, compare=False)
    """When `index.json` was read, in seconds since 1970, by the store's clock if the store reports
    the time. It is not before the time at which `index.json` was written."""
    num_left_out: int = 0
    """Number of shards at the end of the index that are left out, because they were appended after
    the run began."""
    files: Location | None = None
    """The folder of the stored shards, if they are not in the folder of the other objects."""
    first_sample: int = 0
    """The index in the whole dataset of the first sample, for a part of a dataset."""

    @property
    def url(self) -> str:
        """The URL of the folder."""
        return self.location.url

    def locate(self, shard: shard_entries.ShardInfo) -> Location:
        """The location of a shard's stored file."""
        return (self.files or self.location).join(shard.stored.name)

    def take(self, count: int) -> Dataset:
        """Return this dataset with only its first `count` shards."""
        left_out = self.num_left_out + len(self.shards) - count
        return replace(self, shards=self.shards[:count], num_left_out=left_out)

    def part(self, first: int, stop: int) -> Dataset:
        """Return this dataset with only its shards from `first` to `stop`, which is excluded."""
        before = int(self.table.samples[:first].sum())
        return replace(self, shards=self.table[first:stop], first_sample=before)

    @cached_property
    def table(self) -> ShardTable:
        """The shards as columns."""
        return self.shards if isinstance(self.shards, ShardTable) else ShardTable.of(self.shards)

    @cached_property
    def num_without_hash(self) -> int:
        """Number of shards whose index entry has no hash that can be checked.

        If such a shard is rewritten at the same size, the index stays the same.
        """
        return sum(
            count
            for form, count in self.table.count_forms().items()
            if form.compression not in shard_entries.VIRTUAL
            and fastest_hash(dict.fromkeys((*form.raw_hashes, *(form.zipped_hashes or ())), ""))
            is None
        )

    def __repr__(self) -> str:
        return f"Dataset({str(self.location)!r}, {len(self.shards)} shards, {self.index_hash[:12]})"


@dataclass(frozen=True)
class Corpus:
    """Datasets that are read as one. Sample and shard indices run across all datasets, in order."""

    datasets: tuple[Dataset, ...]

    @cached_property
    def shard_sizes(self) -> Ints:
        """Number of samples in each shard: int64 [shards]. May be read-only."""
        return join_columns([dataset.table.samples for dataset in self.datasets])

    @cached_property
    def shard_starts(self) -> Ints:
        """First sample of each shard, and the total number of samples: int64 [shards + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_sizes)]).astype(np.int64)

    @cached_property
    def stream_starts(self) -> Ints:
        """First sample of each dataset, and the total number of samples: int64 [datasets + 1]."""
        sizes = [int(dataset.table.samples.sum()) for dataset in self.datasets]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @cached_property
    def _first_shards(self) -> list[int]:
        """The index of each dataset's first shard, and the number of all shards."""
        return [0, *itertools.accumulate(len(dataset.shards) for dataset in self.datasets)]

    def find_owner(self, index: int) -> tuple[int, int]:
        """The index of a shard's dataset, and the shard's index within that dataset."""
        owner = bisect.bisect_right(self._first_shards, index) - 1
        return owner, index - self._first_shards[owner]

    def find_shard(self, index: int) -> tuple[Dataset, shard_entries.ShardInfo]:
        """The dataset of the shard with index `index`, and the shard's entry in its index."""
        owner, shard = self.find_owner(index)
        dataset = self.datasets[owner]
        return dataset, dataset.shards[shard]

    def is_in_place(self, index: int) -> bool:
        """Whether the shard with index `index` is mapped in place instead of from the cache."""
        owner, shard = self.find_owner(index)
        dataset = self.datasets[owner]
        return dataset.location.is_local and dataset.table.find_form(shard).compression is None

    @property
    def num_samples(self) -> int:
        """Number of samples in all datasets."""
        return int(self.shard_starts[-1])

    def num_shards(self, stream: int) -> int:
        """Number of shards in the dataset with index `stream`."""
        return len(self.datasets[stream].shards)

    def streams_of(self, samples: Ints) -> Ints:
        """The dataset index of each sample: int64, in the shape of `samples`."""
        return np.searchsorted(self.stream_starts, samples, side="right") - 1

    def shards_of(self, samples: Ints) -> Ints:
        """The shard index of each sample: int64, in the shape of `samples`."""
        return np.searchsorted(self.shard_starts, samples, side="right") - 1

    def number_samples(self, stream: int, samples: Ints) -> Ints:
        """The indices of a stream's samples in its whole dataset: int64, in the shape of `samples`.

        They do not depend on other streams.
        """
        first = int(self.stream_starts[stream]) - self.datasets[stream].first_sample
        return samples - first

    def fingerprint(self, streams: range) -> str:
        """Return 32 hex digits that identify the shards of the datasets with indices `streams`.

        They depend on each shard's sample count, columns, raw size, and raw hashes, in order, but
        not on location or compression.
        """
        return self._fingerprint(streams, DATA)

    def fingerprint_samples(self, streams: range) -> str:
        """Return 32 hex digits that identify the samples of the datasets with indices `streams`.

        They depend on each shard's sample count, columns, and `SAMPLES_HASH`, in order, but not on
        its header, which names the compression, hashes, and size limit. Returns "" if the index
        lacks this hash of a shard.
        """
        return self._fingerprint(streams, SAMPLES)

    def take(self, counts: Sequence[int]) -> Corpus:
        """Return a corpus that has only the first `counts[d]` shards of each dataset `d`."""
        pairs = zip(self.datasets, counts, strict=True)
        return Corpus(tuple(dataset.take(count) for dataset, count in pairs))

    def find_beginning(self, stream: int, fingerprint: str, samples: str) -> int | None:
        """Find how many shards at the start of a dataset together have one of the fingerprints.

        `fingerprint` and `samples` are results of `fingerprint` and `fingerprint_samples`, or "".
        Returns None if no number of shards matches.
        """
        table = self.datasets[stream].table
        return find_beginning(table, fingerprint, DATA) or find_beginning(table, samples, SAMPLES)

    @cached_property
    def _fingerprints(self) -> dict[tuple[range, str], str]:
        return {}

    def _fingerprint(self, streams: range, kind: str) -> str:
        if (streams, kind) not in self._fingerprints:
            tables = [self.datasets[each].table for each in streams]
            self._fingerprints[streams, kind] = fingerprint(tables, kind)
        return self._fingerprints[streams, kind]


def join_columns(columns: Sequence[Ints]) -> Ints:
    """Join a column of several tables: int64 [shards]. A single table's column is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate([np.zeros(0, np.int64), *columns])


def is_in_place(dataset: Dataset, shard: shard_entries.ShardInfo) -> bool:
    """Whether a shard is mapped in place, because it is local and uncompressed."""
    return dataset.location.is_local and shard.zipped is None


def are_in_place(dataset: Dataset) -> Flags:
    """Whether each shard of a dataset is mapped in place: bool [shards]."""
    return ~dataset.table.is_zipped & dataset.location.is_local


def open_corpus(
    locations: Sequence[Location],
    root: Path | None = None,
    *,
    choices: Sequence[ColumnChoice] | None = None,
    may_be_empty: bool = True,
) -> Corpus:
    """Open the index of the dataset at each location.

    With a cache folder `root`, the processes of a node share large indexes. `choices` are the
    columns that are read of each dataset of Parquet files; by default, all columns.

    Raises `StoreError` if an index cannot be read. Raises `DatasetError` if an index is invalid, if
    a location has something else, such as raw files, if a package for its compression is missing,
    if all datasets are empty, or if one is empty and `may_be_empty` is False.
    """
    choices = choices or [ALL_COLUMNS] * len(locations)
    corpus = Corpus(tuple(_open_datasets(locations, root, choices)))
    empty = [dataset for dataset in corpus.datasets if not dataset.table.samples.any()]
    if len(empty) == len(corpus.datasets) or (empty and not may_be_empty):
        urls = ", ".join(str(dataset.location) for dataset in empty)
        raise DatasetError(
            f"found no samples in {urls}. Convert a corpus first, or remove empty streams"
        )
    return corpus


def _open_datasets(
    locations: Sequence[Location], root: Path | None, choices: Sequence[ColumnChoice]
) -> Iterator[Dataset]:
    """Yield the dataset at each location. Several indexes are read at a time."""
    pairs = list(zip(locations, choices, strict=True))
    if len(pairs) == 1:
        yield _open_dataset(locations[0], root, choices[0])
        return
    yield from map_in_order(
        lambda pair: _open_dataset(pair[0], root, pair[1]), pairs, _NUM_THREADS, "cloudload-index"
    )


def _open_dataset(location: Location, root: Path | None, choice: ColumnChoice) -> Dataset:
    index = open_index(location, root, choice)
    for form in index.shards.count_forms():
        if form.compression is not None:
            check_codec(form.compression)
    dataset = Dataset(index.folder, index.shards, index.hash, index.version, index.read_s)
    return replace(dataset, files=_locate_files(dataset)) if index.shards.folder else dataset


def _locate_files(dataset: Dataset) -> Location:
    """The folder of the files that an index lists. Raises `DatasetError` if it may not be read."""
    files = dataset.location.at(dataset.table.folder)
    if files.is_local and not dataset.location.is_local:
        raise DatasetError(
            f"the index in {dataset.location} lists files in {files}, but an index in a store may "
            "not name files of this machine. Make an index of the files in a store"
        )
    return files


def list_warnings(dataset: Dataset) -> list[str]:
    """The warnings about the shards of a dataset: missing hashes, and large row groups."""
    large = explain_large_groups(dataset.table, dataset.files or dataset.location)
    return [text for text in (_explain_missing_hashes(dataset), large) if text is not None]


def _explain_missing_hashes(dataset: Dataset) -> str | None:
    if not dataset.num_without_hash:
        return None
    effect = (
        "The cache detects the new shards only if index.json is also written again"
        if dataset.version.is_known
        else "The cache continues to use the old shards, because the store does not report when "
        "index.json was written"
    )
    return (
        f"{dataset.location}: {dataset.num_without_hash:,} of {len(dataset.shards):,} shards "
        "have no hash in the index. If the dataset is published again with shards of the same "
        f"sizes, a resumed run reads the new text without an error. {effect}. Write the dataset "
        "with hashes, for example with MDSWriter(hashes=['xxh64'])"
    )
