"""Keep a conversion's shards in memory compactly, to write the index and to find lost shards.

    entry of the index ─► its text, 1,000 of them compressed ─► index.json, piece by piece
                       └► a 64-bit key of name and size      ─► is the shard in the listing?

A dataset may have a million shards with index entries of 500 bytes each, so memory never holds all
entries or the whole index.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
import zstandard

from cloudload.data import shard_entries, urls

_PACKED = 1_000


class JoinedShards:
    """Collects the index entries of shards, in order, and their totals."""

    def __init__(self) -> None:
        self.shards = self.documents = self.raw_bytes = self.stored_bytes = 0
        self._keys = array("Q")
        self._packed: list[bytes] = []
        self._texts: list[str] = []

    def add(self, folder: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add the shards of a folder. "" is the folder of the dataset itself."""
        for entry in entries:
            files = {
                kind: {**entry[kind], "basename": urls.join_url(folder, entry[kind]["basename"])}
                if folder and entry[kind]
                else entry[kind]
                for kind in ("raw_data", "zip_data")
            }
            file = files["zip_data"] or files["raw_data"]
            self.shards += 1
            self.documents += entry["samples"]
            self.raw_bytes += files["raw_data"]["bytes"]
            self.stored_bytes += file["bytes"]
            self._keys.append(_key(file["basename"], file["bytes"]))
            self._texts.append(json.dumps({**entry, **files}, sort_keys=True))
            if len(self._texts) == _PACKED:
                self._packed.append(zstandard.compress(", ".join(self._texts).encode(), 1))
                self._texts.clear()

    def index(self) -> Iterator[bytes]:
        """Yield `index.json` in pieces, with the bytes that `mds.writer.encode_index` returns."""
        yield b'{"shards": ['
        for number, entries in enumerate(self._entries()):
            yield (b", " if number else b"") + entries
        yield b'], "version": 2}'

    def survey(self, listed: Iterable[tuple[str, int]]) -> tuple[list[str], list[str]]:
        """Return the names of the shards that a listing lacks, and of the indexes that it has.

        `listed` yields (name, bytes) of each stored object.
        """
        keys, indexes = array("Q"), []
        for name, size in listed:
            keys.append(_key(name, size))
            if name.endswith(shard_entries.INDEX_NAME):
                indexes.append(name)
        is_lost = ~np.isin(np.array(self._keys, np.uint64), np.array(keys, np.uint64))
        lost = set(np.flatnonzero(is_lost).tolist())
        names = self._names() if lost else ()
        return [name for index, name in enumerate(names) if index in lost], indexes

    def _entries(self) -> Iterator[bytes]:
        """Yield the texts of consecutive entries, separated by commas."""
        yield from map(zstandard.decompress, self._packed)
        if self._texts:
            yield ", ".join(self._texts).encode()

    def _names(self) -> Iterator[str]:
        for entries in self._entries():
            for entry in json.loads(b"[" + entries + b"]"):
                yield (entry["zip_data"] or entry["raw_data"])["basename"]


def _key(name: str, size: int) -> int:
    """Return a 64-bit hash of a stored file's name and size."""
    return xxhash.xxh3_64_intdigest(f"{size} {name}".encode())
