"""Open the index of a dataset, which one process of a node reads and parses for all of them.

    root/indexes/<hash of the URL>.note      what was read last; see `storage.node_reads`
    root/indexes/<SHA-256>.shards            the index as a `ShardTable`, which processes map

Without a cache folder, for a small local index, and if the folder cannot be written, a process
reads and parses the index itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import time
from pathlib import Path
from typing import NamedTuple

from cloudload.config.stream import Stream
from cloudload.errors import DatasetError, StoreError
from cloudload.mds.fingerprints import DATA, fingerprint
from cloudload.mds.index import INDEX_NAME, MOST_INDEX_BYTES
from cloudload.mds.index_parser import parse_index
from cloudload.mds.not_a_dataset import explain_hub_name, explain_not_a_dataset
from cloudload.mds.shard_table import ShardTable, map_table
from cloudload.storage.base import Retry
from cloudload.storage.nearby import raise_if_nothing
from cloudload.storage.node_reads import MISSING, Kept, is_verified, read_for_node, read_version_of
from cloudload.storage.objects import read_object_version
from cloudload.storage.redaction import redact
from cloudload.storage.urls import is_local, join_url, local_path
from cloudload.storage.versions import Version

INDEXES_FOLDER = "indexes"
"""The folder of indexes in a cache folder."""
# parsing a smaller one takes less than 0.1 s
_SHARED_FROM_BYTES = 1 << 20


class OpenedIndex(NamedTuple):
    """An index."""

    shards: ShardTable
    hash: str
    """SHA-256 of `index.json`, in hex digits."""
    version: Version
    """Its version, as the store reported it."""
    read_s: float
    """When it was read, in seconds since 1970; see `NodeRead.read_s`."""


def open_index(stream: Stream, retry: Retry, root: Path | None = None) -> OpenedIndex:
    """Open the index of a stream's dataset; with a cache folder `root`, once for the node.

    Raises `DatasetError` if the index is invalid, and the errors of `read_index`.
    """
    if root is not None and _is_shared(stream.url) and not explain_hub_name(stream):
        with contextlib.suppress(OSError):
            if (found := _open_for_node(stream, retry, root / INDEXES_FOLDER)) is not None:
                return found
    before_s = time.time()
    data, version = read_index(stream, retry)
    read_s = max(version.read_s or before_s, version.written_s or 0.0)
    shards = parse_index(data, redact(stream.url))
    return OpenedIndex(shards, hashlib.sha256(data).hexdigest(), version, read_s)


def _is_shared(url: str) -> bool:
    """Whether reading an index once for a node is worth a file."""
    if not is_local(url):
        return True
    with contextlib.suppress(OSError):
        return (local_path(url) / INDEX_NAME).stat().st_size >= _SHARED_FROM_BYTES
    return False


def _open_for_node(stream: Stream, retry: Retry, folder: Path) -> OpenedIndex | None:
    """Open an index once for the node; None if there is no index."""

    def write(data: bytes, path: Path) -> None:
        table = parse_index(data, redact(stream.url))
        fingerprint([table], DATA)  # the table keeps it
        table.write(path)

    kept = Kept(lambda digest: folder / f"{digest}.shards", is_verified, write)
    url = join_url(stream.url, INDEX_NAME)
    found = read_for_node(url, folder, kept, read_version_of(url, retry, MOST_INDEX_BYTES))
    if found.digest == MISSING:
        return None
    shards = map_table(kept.path_of(found.digest))
    return OpenedIndex(shards, found.digest, found.version, found.read_s)


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
