"""A dataset: the index of one MDS dataset, and of several read as one corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.arrays import Ints
from cloudload.config import Stream
from cloudload.errors import DatasetError
from cloudload.mds.codecs import check_codec
from cloudload.mds.index import INDEX_NAME, MOST_INDEX_BYTES, ShardInfo, parse_index
from cloudload.storage.base import Retry
from cloudload.storage.objects import read_object
from cloudload.storage.redaction import hide_secrets
from cloudload.storage.urls import is_local, join_url


@dataclass(frozen=True)
class Dataset:
    """One MDS dataset as its index tells of it."""

    url: str
    shards: tuple[ShardInfo, ...]
    index_hash: str
    """SHA-256 of `index.json`: a republished dataset is another dataset."""

    def __repr__(self) -> str:
        return (
            f"Dataset({hide_secrets(self.url)!r}, {len(self.shards)} shards, "
            f"{self.index_hash[:12]})"
        )


@dataclass(frozen=True)
class Corpus:
    """Datasets read as one: samples and shards are numbered through all of them, in order."""

    datasets: tuple[Dataset, ...]

    @cached_property
    def shard_sizes(self) -> Ints:
        """Samples of each shard: int64 [shards]."""
        return np.array(
            [shard.samples for dataset in self.datasets for shard in dataset.shards], np.int64
        )

    @cached_property
    def shard_starts(self) -> Ints:
        """First sample of each shard, and the number of samples: int64 [shards + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_sizes)]).astype(np.int64)

    @cached_property
    def stream_starts(self) -> Ints:
        """First sample of each dataset, and the number of samples: int64 [datasets + 1]."""
        sizes = [sum(shard.samples for shard in dataset.shards) for dataset in self.datasets]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @cached_property
    def shard_owners(self) -> list[tuple[int, int]]:
        """(dataset, shard within it) of each shard."""
        return [
            (d, s) for d, dataset in enumerate(self.datasets) for s in range(len(dataset.shards))
        ]

    @property
    def num_samples(self) -> int:
        """Samples of all datasets."""
        return int(self.shard_starts[-1])

    def num_shards(self, stream: int) -> int:
        """Shards of one dataset."""
        return len(self.datasets[stream].shards)

    def streams_of(self, samples: Ints) -> Ints:
        """The dataset of each sample."""
        return np.searchsorted(self.stream_starts, samples, side="right") - 1

    def shards_of(self, samples: Ints) -> Ints:
        """The shard of each sample."""
        return np.searchsorted(self.shard_starts, samples, side="right") - 1

    @property
    def raw_bytes(self) -> int:
        """Bytes of all raw shards."""
        return sum(shard.raw.bytes for dataset in self.datasets for shard in dataset.shards)

    def fingerprint(self, streams: range) -> str:
        """Of some datasets: equal for the same shards in the same order, wherever they lie and
        however they are compressed."""
        digest = hashlib.sha256()
        for stream in streams:
            digest.update(b"dataset\n")
            for shard in self.datasets[stream].shards:
                columns = [(column.name, column.encoding) for column in shard.columns]
                digest.update(
                    f"{shard.samples} {shard.raw.bytes} "
                    f"{sorted(shard.raw.hashes.items())} {columns}\n".encode()
                )
        return digest.hexdigest()[:32]


def is_in_place(dataset: Dataset, shard: ShardInfo) -> bool:
    """Whether a shard is mapped where it lies, rather than cached."""
    return is_local(dataset.url) and shard.zipped is None


def check_text_column(corpus: Corpus, text_key: str) -> None:
    """Raises `DatasetError` where a dataset has no such column, or one that holds no text."""
    for dataset in corpus.datasets:
        for columns in dict.fromkeys(shard.columns for shard in dataset.shards):
            encodings = {column.name: column.encoding for column in columns}
            if encodings.get(text_key) not in ("str", "bytes"):
                found = (
                    "no column"
                    if text_key not in encodings
                    else f"no text, but {encodings[text_key]}, in column"
                )
                names = ", ".join(
                    name for name, encoding in encodings.items() if encoding in ("str", "bytes")
                )
                raise DatasetError(
                    f"{hide_secrets(dataset.url)} has {found} {text_key!r}. "
                    + (
                        f"Set text_key to one of its text columns: {names}"
                        if names
                        else "It has no text column at all: convert the corpus again, with one"
                    )
                )


def open_corpus(streams: Sequence[Stream], retry: Retry, *, may_be_empty: bool = True) -> Corpus:
    """Read the index of each stream. Raises `StoreError` or `DatasetError`, and where there is no
    sample in any, or in one that may not be empty."""
    corpus = Corpus(tuple(_open_dataset(stream, retry) for stream in streams))
    empty = [
        dataset for dataset in corpus.datasets if not sum(shard.samples for shard in dataset.shards)
    ]
    if len(empty) == len(corpus.datasets) or (empty and not may_be_empty):
        raise DatasetError(
            f"no samples in {', '.join(hide_secrets(dataset.url) for dataset in empty)}. Convert a "
            "corpus first"
        )
    return corpus


def _open_dataset(stream: Stream, retry: Retry) -> Dataset:
    data = read_object(join_url(stream.url, INDEX_NAME), retry, MOST_INDEX_BYTES)
    shards = parse_index(data, hide_secrets(stream.url))
    for compression in {shard.compression for shard in shards}:
        if compression is not None:
            check_codec(compression)
    return Dataset(stream.url, shards, hashlib.sha256(data).hexdigest())
