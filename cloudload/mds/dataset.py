"""The index of an MDS dataset, and a corpus: several datasets read as one.

datasets   A: shards of 3, 2 samples      B: one shard of 4
samples    0 1 2 │ 3 4                    5 6 7 8
shards       0   │  1                        2
stream_starts 0, 5, 9                     shard_starts 0, 3, 5, 9
"""

from __future__ import annotations

import hashlib
import itertools
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cloudload.arrays import Ints
from cloudload.config.stream import Stream
from cloudload.errors import DatasetError, StoreError
from cloudload.mds.codecs import check_codec
from cloudload.mds.hashes import fastest_hash
from cloudload.mds.index import INDEX_NAME, MOST_INDEX_BYTES, ShardInfo, parse_index
from cloudload.mds.not_a_dataset import explain_hub_name, explain_not_a_dataset
from cloudload.storage.base import Retry
from cloudload.storage.nearby import raise_if_nothing
from cloudload.storage.objects import read_object_version
from cloudload.storage.redaction import redact
from cloudload.storage.urls import is_local, join_url
from cloudload.storage.versions import UNKNOWN, Version


@dataclass(frozen=True)
class Dataset:
    """An MDS dataset, as described by its index."""

    url: str
    shards: tuple[ShardInfo, ...]
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

    def take(self, number: int) -> Dataset:
        """This dataset, with only the first `number` shards."""
        left_out = self.num_left_out + len(self.shards) - number
        return replace(self, shards=self.shards[:number], num_left_out=left_out)

    @cached_property
    def num_without_hash(self) -> int:
        """Number of shards whose index entry has no hash that can be checked.

        If such a shard is rewritten at the same size, the index stays the same.
        """
        kinds = Counter((*shard.raw.hashes, *shard.stored.hashes) for shard in self.shards)
        return sum(
            number
            for names, number in kinds.items()
            if fastest_hash(dict.fromkeys(names, "")) is None
        )

    def __repr__(self) -> str:
        return f"Dataset({redact(self.url)!r}, {len(self.shards)} shards, {self.index_hash[:12]})"


@dataclass(frozen=True)
class Corpus:
    """Datasets read as one: sample and shard indices run across all datasets, in order."""

    datasets: tuple[Dataset, ...]

    @cached_property
    def shard_sizes(self) -> Ints:
        """Number of samples in each shard: int64 [shards]."""
        return np.array(
            [shard.samples for dataset in self.datasets for shard in dataset.shards], np.int64
        )

    @cached_property
    def shard_starts(self) -> Ints:
        """First sample of each shard, and the total number of samples: int64 [shards + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_sizes)]).astype(np.int64)

    @cached_property
    def stream_starts(self) -> Ints:
        """First sample of each dataset, and the total number of samples: int64 [datasets + 1]."""
        sizes = [sum(shard.samples for shard in dataset.shards) for dataset in self.datasets]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @cached_property
    def shard_owners(self) -> list[tuple[int, int]]:
        """The index of each shard's dataset, and the shard's index within that dataset."""
        return [
            (d, s) for d, dataset in enumerate(self.datasets) for s in range(len(dataset.shards))
        ]

    def find_shard(self, number: int) -> tuple[Dataset, ShardInfo]:
        """The dataset of the shard with index `number`, and the shard's entry in its index."""
        owner, shard = self.shard_owners[number]
        dataset = self.datasets[owner]
        return dataset, dataset.shards[shard]

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

    def fingerprint(self, streams: range) -> str:
        """Return 32 hex digits that identify the shards of the datasets with indices `streams`.

        They depend on each shard's sample count, columns, raw size, and raw hashes, in order, but
        not on location or compression.
        """
        return self._hash_shards(streams, _describe_data)

    def fingerprint_samples(self, streams: range) -> str:
        """Return 32 hex digits that identify the samples of the datasets with indices `streams`.

        They depend on each shard's sample count, columns, and `SAMPLES_HASH`, in order, but not on
        its header, which names the compression, hashes, and size limit. "" if a shard has no such
        hash in the index.
        """
        shards = itertools.chain.from_iterable(self.datasets[each].shards for each in streams)
        if not all(shard.samples_hash for shard in shards):
            return ""
        return self._hash_shards(streams, _describe_samples)

    def take(self, numbers: Sequence[int]) -> Corpus:
        """The corpus of the first `n` shards of each dataset, given each `n`."""
        pairs = zip(self.datasets, numbers, strict=True)
        return Corpus(tuple(dataset.take(number) for dataset, number in pairs))

    def find_beginning(self, stream: int, fingerprint: str, samples: str) -> int | None:
        """The number of shards at the start of a dataset that have one of these fingerprints.

        `fingerprint` and `samples` are results of `fingerprint` and `fingerprint_samples`, or "".
        Returns None if no number of shards matches.
        """
        found = self._find_hash(stream, fingerprint, _describe_data)
        return found or self._find_hash(stream, samples, _describe_samples)

    def _find_hash(
        self, stream: int, wanted: str, describe: Callable[[ShardInfo], str]
    ) -> int | None:
        digest = hashlib.sha256(_DATASET)
        for number, shard in enumerate(self.datasets[stream].shards if wanted else (), 1):
            digest.update(_encode_shard(shard, describe))
            if digest.hexdigest()[:_DIGITS] == wanted:
                return number
        return None

    def _hash_shards(self, streams: range, describe: Callable[[ShardInfo], str]) -> str:
        digest = hashlib.sha256()
        for stream in streams:
            digest.update(_DATASET)
            for shard in self.datasets[stream].shards:
                digest.update(_encode_shard(shard, describe))
        return digest.hexdigest()[:_DIGITS]


_DATASET, _DIGITS = b"dataset\n", 32


def _encode_shard(shard: ShardInfo, describe: Callable[[ShardInfo], str]) -> bytes:
    columns = [(column.name, column.encoding) for column in shard.columns]
    return f"{shard.samples} {describe(shard)} {columns}\n".encode()


def _describe_data(shard: ShardInfo) -> str:
    return f"{shard.raw.bytes} {sorted(shard.raw.hashes.items())}"


def _describe_samples(shard: ShardInfo) -> str:
    return str(shard.samples_hash)


def is_in_place(dataset: Dataset, shard: ShardInfo) -> bool:
    """Whether a shard is mapped in place, because it is local and uncompressed."""
    return is_local(dataset.url) and shard.zipped is None


def open_corpus(streams: Sequence[Stream], retry: Retry, *, may_be_empty: bool = True) -> Corpus:
    """Read the index of each stream.

    Raises `StoreError` if an index cannot be read. Raises `DatasetError` if an index is invalid, if
    a location has something else, such as raw files, if a package for its compression is missing,
    if all datasets are empty, or if one is empty and `may_be_empty` is False.
    """
    corpus = Corpus(tuple(_open_dataset(stream, retry) for stream in streams))
    empty = [
        dataset for dataset in corpus.datasets if not any(shard.samples for shard in dataset.shards)
    ]
    if len(empty) == len(corpus.datasets) or (empty and not may_be_empty):
        urls = ", ".join(redact(dataset.url) for dataset in empty)
        raise DatasetError(f"no samples in {urls}. Convert a corpus first, or remove empty streams")
    return corpus


def read_index(stream: Stream, retry: Retry) -> tuple[bytes, Version]:
    """Read the index of a stream's dataset, and its version.

    Raises `DatasetError` if the location has something else, such as raw files, and `StoreError` if
    the index cannot be read for another reason.
    """
    if reason := explain_hub_name(stream):
        raise DatasetError(reason)
    try:
        return read_object_version(join_url(stream.url, INDEX_NAME), retry, MOST_INDEX_BYTES)
    except StoreError as error:
        if not error.is_missing:
            raise
        if (reason := explain_not_a_dataset(stream, retry)) is None:
            what = f"read the dataset in {redact(stream.url)}"
            advice = "Check the location, or convert a corpus to it: cloudload convert INPUT "
            advice += shlex.quote(redact(stream.url))
            raise_if_nothing(error, stream.url, what, noun="folder", retry=retry, advice=advice)
            raise
    raise DatasetError(reason)


def _open_dataset(stream: Stream, retry: Retry) -> Dataset:
    before_s = time.time()
    data, version = read_index(stream, retry)
    shards = parse_index(data, redact(stream.url))
    for compression in {shard.compression for shard in shards}:
        if compression is not None:
            check_codec(compression)
    read_s = max(version.read_s or before_s, version.written_s or 0.0)
    return Dataset(stream.url, shards, hashlib.sha256(data).hexdigest(), version, read_s)


def warn_of_missing_hashes(dataset: Dataset) -> str | None:
    """A warning about a dataset with shards that have no hash; None if all shards have one."""
    if not dataset.num_without_hash:
        return None
    effect = (
        "and the cache detects it only if index.json is written again, too"
        if dataset.version.is_known
        else "and the cache continues to use the old shards, because the store does not report "
        "when index.json was written"
    )
    return (
        f"{redact(dataset.url)}: {dataset.num_without_hash:,} of {len(dataset.shards):,} shards "
        "have no hash in the index. If the dataset is published again with shards of the same "
        f"sizes, a resumed run reads the new text without an error, {effect}. Write the dataset "
        "with hashes, for example MDSWriter(hashes=['xxh64'])"
    )
