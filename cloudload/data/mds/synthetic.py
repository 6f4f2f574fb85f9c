"""A store without I/O: datasets of random token IDs, for measuring shapes and speed.

    synthetic:?vocab_size=1000&documents=5000      the location names everything that the data has
      ├── index.json                               made when it is read, and so are the shards
      └── shard.00000.mds, …                       column `tokens`: documents of random token IDs

A dataset is an MDS dataset like any other. The cache keeps its shards, and the loader's order,
rows, and states do not know that nobody stored it. Every process that reads a location makes the
same bytes: those of a shard depend only on the location's values and on the shard's index. The
lengths of documents are log-normal, as in corpora of web pages, so a few documents are long.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from cloudload.data.mds import shard_entries, writer
from cloudload.data.storage import urls
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.errors import FailureKind, StoreError
from cloudload.system import Ints

TOKENS_KEY = "tokens"
"""The column of token IDs."""

_SIGMA = 1.0  # of the logarithm of a length: the longest 1% have 6 times the mean, or more
_SHARD_TOKENS = 1 << 20
_MOST_TOKENS = 1 << 26
_MOST = {
    "vocab_size": (1 << 31) - 1,
    "documents": 1 << 18,
    "mean_tokens": 1 << 20,
    "seed": (1 << 32) - 1,
}
_LEAST = {"seed": 0}  # the others are at least 1


@dataclass(frozen=True)
class SyntheticData:
    """What the location of a synthetic dataset says."""

    vocab_size: int = 50_257
    """Number of token IDs. Each is equally likely."""
    documents: int = 20_000
    """Number of documents."""
    mean_tokens: int = 800
    """Mean length of a document in tokens."""
    seed: int = 0
    """Seed of the lengths and of the token IDs."""

    @property
    def encoding(self) -> str:
        """The encoding of the column, in the smallest dtype that holds the IDs."""
        return "ndarray:uint16" if self.vocab_size <= 1 << 16 else "ndarray:int32"

    @property
    def shard_documents(self) -> int:
        """Number of documents in each shard but the last."""
        return max(1, _SHARD_TOKENS // self.mean_tokens)

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return -(-self.documents // self.shard_documents)


def is_synthetic(location: str) -> bool:
    """Whether a location is that of a synthetic dataset."""
    return urls.scheme_of(location) == urls.SYNTHETIC


def parse_synthetic(location: str) -> SyntheticData:
    """Parse the location of a synthetic dataset. Raises `ValueError` if it is not valid."""
    query = location.partition(":")[2]
    known = [each.name for each in fields(SyntheticData)]
    use = f"Use {urls.SYNTHETIC}: alone, or with any of ?{'&'.join(f'{name}=N' for name in known)}"
    if query and not query.startswith("?"):
        raise ValueError(f"{location!r} does not describe synthetic data. {use}")
    values: dict[str, int] = {}
    for name, text in parse_qsl(query[1:], keep_blank_values=True):
        if name not in known:
            raise ValueError(f"{location!r} has the unknown name {name!r}. {use}")
        if name in values:
            raise ValueError(f"{location!r} has {name} twice. Keep one of them")
        values[name] = _parse_number(location, name, text)
    data = SyntheticData(**values)
    if (total := data.documents * data.mean_tokens) > _MOST_TOKENS:
        raise ValueError(
            f"{location!r} has {total:,} tokens, and synthetic data may have {_MOST_TOKENS:,}. Use "
            "fewer documents. A run without epochs repeats them"
        )
    return data


def _parse_number(location: str, name: str, text: str) -> int:
    least, most = _LEAST.get(name, 1), _MOST[name]
    digits = text.replace("_", "")
    if digits.isascii() and digits.isdecimal() and least <= int(digits[:20]) <= most:
        return int(digits)
    raise ValueError(f"{location!r} has {name}={text!r}. Use an integer from {least} to {most:,}")


# ---------------------------------------------------------------- the objects


class SyntheticStore(Backend):
    """The backend of synthetic datasets. It makes an object when it is read."""

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        data, name = _split(url)
        body = io.BytesIO(_make_object(data, name))
        body.seek(start)
        return ObjectStream(body)  # type: ignore[arg-type]

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        raise StoreError(
            f"cannot write {url}, because nobody stores synthetic data. Choose a folder, or the "
            "URL of a store"
        )

    create = upload

    def delete(self, url: str) -> None:
        """Do nothing, because nothing is stored."""

    def list(self, url: str) -> Iterator[StoredObject]:
        data, name = _split(url)
        folder = url.rstrip("/").removesuffix(f"/{name}") if name else url.rstrip("/")
        sizes = {each["raw_data"]["basename"]: each["raw_data"]["bytes"] for each in _list(data)}
        sizes[shard_entries.INDEX_NAME] = len(_encode_index(data))
        for each, size in sizes.items():
            if name in ("", each):
                yield StoredObject(urls.join_url(folder, each), size)

    def peek(self, url: str) -> Iterator[str]:
        folder = url.rstrip("/")
        return (urls.name_below(each.url, folder) for each in self.list(url))

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER


def _split(url: str) -> tuple[SyntheticData, str]:
    """Return the dataset of an object's URL, and the object's name; "" for the dataset itself."""
    location, _, name = url.partition("/")
    try:
        return parse_synthetic(location), name
    except ValueError as error:
        raise StoreError(str(error)) from None


def _make_object(data: SyntheticData, name: str) -> bytes:
    """Make the bytes of an object. Raises `FileNotFoundError` if the dataset has no such object."""
    if name == shard_entries.INDEX_NAME:
        return _encode_index(data)
    for index, entry in enumerate(_list(data)):
        if name == entry["raw_data"]["basename"]:
            return _make_shard(data, index).data
    raise FileNotFoundError(f"{name} is not part of a synthetic dataset")


@lru_cache(maxsize=8)
def _encode_index(data: SyntheticData) -> bytes:
    return writer.encode_index([_make_shard(data, each).entry for each in range(data.num_shards)])


def _list(data: SyntheticData) -> list[dict[str, Any]]:
    """List the index's entries of all shards."""
    shards: list[dict[str, Any]] = json.loads(_encode_index(data))["shards"]
    return shards


def _make_shard(data: SyntheticData, index: int) -> writer.PackedShard:
    columns = (shard_entries.Column(TOKENS_KEY, data.encoding, None),)
    form = writer.ShardFormat(columns, compression=None)
    samples = [
        writer.encode_sample(columns, {TOKENS_KEY: each}) for each in _draw_documents(data, index)
    ]
    return writer.pack_shard(form, index, np.array([len(each) for each in samples]), samples)


def _draw_documents(data: SyntheticData, shard: int) -> list[Ints]:
    """Draw the token IDs of each document of a shard."""
    random = np.random.default_rng((data.seed, shard))
    count = min(data.shard_documents, data.documents - shard * data.shard_documents)
    # the mean of a log-normal distribution is exp(mu + sigma^2 / 2)
    mu = math.log(data.mean_tokens) - _SIGMA**2 / 2
    lengths = np.maximum(1, np.rint(random.lognormal(mu, _SIGMA, count))).astype(np.int64)
    dtype = data.encoding.partition(":")[2]
    tokens = random.integers(data.vocab_size, size=lengths.sum()).astype(dtype)
    return np.split(tokens, np.cumsum(lengths)[:-1])
