"""Simulate a store with a dataset of very many shards, which needs little disk space.

    s3://simulated/data/index.json               a real index, with any number of entries
    s3://simulated/data/00012/shard.00345.mds…   the same real shard under every name

A loader reads the dataset like any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import TOKENIZER
from cloudload import convert_to_mds
from cloudload.data.storage import locations
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.data.storage.versions import version_of_headers
from cloudload.errors import FailureKind

URL = "s3://simulated/data"
_SHARDS_OF_FOLDER = 1_000
_WRITTEN_S = 1_000_000_000.0
_NAMES = "{name}", "{stored}"


def write_index_of_many(folder: Path, shards: int, samples: int) -> None:
    """Write one shard of `samples` documents, and an index that lists it `shards` times."""
    texts = ({"text": text} for text in short_texts(samples))
    convert_to_mds(texts, folder / "one", shard_bytes=1 << 30, progress=False)
    index = json.loads((folder / "one" / "index.json").read_bytes())
    [entry] = index["shards"]
    (folder / "one" / entry["zip_data"]["basename"]).rename(folder / "shard")
    entry["raw_data"]["basename"], entry["zip_data"]["basename"] = _NAMES
    template = json.dumps(entry)
    with (folder / "index.json").open("w") as file:
        file.write('{"version": 2, "shards": [')
        for number in range(shards):
            name = f"{number // _SHARDS_OF_FOLDER:05}/shard.{number % _SHARDS_OF_FOLDER:05}.mds"
            text = template.replace(_NAMES[0], name).replace(_NAMES[1], f"{name}.zstd")
            file.write(f"{', ' * (number > 0)}{text}")
        file.write("]}")


def short_texts(number: int) -> Iterator[str]:
    """Yield `number` documents of 3 to 11 words."""
    random = np.random.default_rng(0)
    words = ["the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on"]
    for size in random.integers(3, 12, number).tolist():
        yield " ".join(words[each] for each in random.integers(0, len(words), size).tolist())


class ReadOnlyStore(Backend):
    """A store without folders that rejects writes. Its objects are those that `open` knows."""

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        raise PermissionError(url)

    create = upload

    def delete(self, url: str) -> None:
        raise PermissionError(url)

    def list(self, url: str) -> Iterator[StoredObject]:
        return iter(())

    def peek(self, url: str) -> Iterator[str]:
        return iter(())

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER


class SimulatedStore(ReadOnlyStore):
    """A store that serves the files of `write_index_of_many`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(timeout_s=1)
        self._folder = folder

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        name = url.removeprefix(f"{URL}/")
        is_shard = name.endswith(".mds.zstd")
        if not is_shard and name != "index.json":
            raise FileNotFoundError(url)
        file = (self._folder / ("shard" if is_shard else name)).open("rb", buffering=0)
        size = file.seek(0, 2)
        file.seek(start)
        headers = {"ETag": f'"{name}"', "Content-Length": str(size)}
        headers |= {"Last-Modified": formatdate(_WRITTEN_S), "Date": formatdate(time.time())}
        return ObjectStream(file, version_of_headers(headers))


def use_store(folder: Path) -> None:
    """Make this process and its forks read s3:// URLs from a folder of `write_index_of_many`."""
    store = SimulatedStore(folder)
    locations.BACKENDS["s3"] = lambda _: store


def loader_options(folder: Path) -> dict[str, Any]:
    """Return the options of a loader for the simulated dataset, with its cache in `folder`."""
    return {
        "tokenizer": str(TOKENIZER),
        "seq_len": 2_048,
        "batch_size": 8,
        "local": str(folder / "cache"),
        "num_workers": 1,
        "shuffle_algo": "seekable",
        "tokenizer_backend": "hf",
    }
