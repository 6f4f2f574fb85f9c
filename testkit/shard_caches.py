"""A dataset of many small shards, read through a shard cache."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader, Retry
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.storage.locations import Location
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader
from testkit.noted_calls import note_calls

DOCUMENTS = random_documents(11, 600)
RETRY = Retry(timeout_s=2.0, deadline_s=60.0, pause_s=0.05)


def write(url: str, **settings: Any) -> Corpus:
    write_mds(url, DOCUMENTS, **{"shard_bytes": 4_000, "compression": "zstd", **settings})
    return open_corpus([Location(url, RETRY)])


def note_ranges(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each range of a file that is read from now on."""
    sizes = list[int]()
    note_calls(
        patch, Location, "read_range", lambda _, start, stop, *__: sizes.append(stop - start)
    )
    return sizes


def texts_of(corpus: Corpus, root: Path, **settings: Any) -> list[str]:
    cache = ShardCache(corpus, root, **{"threads": 3, "verify": "once", **settings})
    try:
        shards = [cache.shard(number) for number in range(len(corpus.shard_sizes))]
        return [
            shard.read_bytes(sample, shard.column_index("text")).decode()
            for shard in shards
            for sample in range(shard.info.samples)
        ]
    finally:
        cache.close()


def samples_of(corpus: Corpus, root: Path) -> list[bytes]:
    """The bytes of each sample, with the sizes of its values."""
    cache = ShardCache(corpus, root, threads=3, verify="always")
    try:
        shards = [cache.shard(number) for number in range(len(corpus.shard_sizes))]
        starts = [np.cumsum([0, *shard.sample_bytes()]) for shard in shards]
        bodies = [
            bytes(shard.data)[-int(ends[-1]) :] for shard, ends in zip(shards, starts, strict=True)
        ]
        return [
            body[start:stop]
            for body, ends in zip(bodies, starts, strict=True)
            for start, stop in itertools.pairwise(ends)
        ]
    finally:
        cache.close()


def loader_of(url: str, cache: Path, **settings: Any) -> CloudLoader:
    """A loader that reads one epoch, with the default number of lanes and of workers."""
    defaults = {"num_lanes": None, "num_workers": None, "seq_len": 64, "epochs": 1}
    return make_loader(url, local=cache, **{**defaults, **settings})


def flip(path: Path, at: int) -> None:
    """Flip the lowest bit of the byte at offset `at`, in place, as another program might."""
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
