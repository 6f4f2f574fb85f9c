"""Shards that are read once, one after another, without a copy on disk.

    prefetch({7: None}) ──► threads ──► stored bytes, checked
    shard(7)            ── decompresses them to a buffer ──► Shard          the buffer is reused

This saves writing each shard to a file and mapping it, which cost as much as decompressing it. A
shard that is mapped in place or is too large for memory uses a `ShardCache` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from cloudload.data.cache.republished import check_written
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds import shard_entries
from cloudload.data.mds.dataset import Corpus, Dataset, is_in_place
from cloudload.data.mds.download import check_data, decompress_checked, describe_second_fault
from cloudload.data.mds.shard import Shard
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.system import DaemonThreadPool, Ints, await_unless_failed

logger = logging.getLogger("cloudload.cache")

MOST_BYTES = 1 << 28
"""The maximum raw size, in bytes, of a shard that is kept in memory."""
_BUFFER_STEP = 1 << 23  # buffer sizes are multiples of this, so that shards of various sizes fit
_CLOSE_S = 2.0

Stored = tuple[bytes, str | None]
"""The stored bytes of a shard, and a description of their fault, or None if they are valid."""


class MemoryShards:
    """The shards of a corpus, by index. Keeps the last shard, and the bytes of prefetched shards.

    A shard remains valid for as long as anything refers to it. The hash of each shard is checked.
    Not thread-safe.
    """

    def __init__(self, corpus: Corpus, cache: ShardCache, *, threads: int) -> None:
        self._corpus, self._cache = corpus, cache
        self._fetches: dict[int, Future[Stored]] = {}
        self._threads = DaemonThreadPool(threads, "cloudload-fetch")
        self._kept: tuple[int, Shard] | None = None
        self._buffer = bytearray()

    def shard(self, index: int, samples: Ints | None = None) -> Shard:
        """Return the shard with index `index`, which always has all samples.

        Raises `StoreError` if the download fails, `DatasetError` if two downloads are invalid, and
        the errors of `ShardCache.shard` for a shard that uses the cache.
        """
        if self._kept is not None and self._kept[0] == index:
            return self._kept[1]
        dataset, info = self._corpus.find_shard(index)
        if not _fits(dataset, info):
            return self._cache.shard(index)
        self._kept = None
        self._kept = index, self._fetch_twice(index, dataset, info)
        return self._kept[1]

    def prefetch(self, shards: Mapping[int, Ints | None]) -> None:
        """Start fetching shards in the given order. If a fetch fails, `shard` fetches again."""
        for index in shards:
            dataset, info = self._corpus.find_shard(index)
            if not _fits(dataset, info):
                self._cache.prefetch({index: None})
            elif index not in self._fetches and (not self._kept or self._kept[0] != index):
                self._fetches[index] = self._threads.submit(self._fetch, dataset, info)

    def close(self) -> None:
        """Stop prefetching, waiting up to 2 s for downloads in progress, and close the cache."""
        self._threads.close(_CLOSE_S)
        self._fetches.clear()
        self._kept = None
        self._cache.close()

    def _fetch_twice(self, index: int, dataset: Dataset, info: shard_entries.ShardInfo) -> Shard:
        location = dataset.locate(info)
        fetch = self._fetches.pop(index, None)
        stored = await_unless_failed(fetch) or self._fetch(dataset, info)
        shard = self._open(*stored, info, location)
        if isinstance(shard, str):
            logger.warning("%s %s. Fetching it again", location, shard)
            shard = self._open(*self._fetch(dataset, info), info, location)
        if isinstance(shard, str):
            raise DatasetError(describe_second_fault(location, info, shard))
        return shard

    def _fetch(self, dataset: Dataset, info: shard_entries.ShardInfo) -> Stored:
        data, version = dataset.locate(info).read_version(info.stored.bytes)
        fault = check_data(data, info.stored, True)
        if fault is None:
            check_written(dataset, info, version.written_s)
        return data, fault

    def _open(
        self,
        stored: bytes,
        fault: str | None,
        info: shard_entries.ShardInfo,
        location: Location,
    ) -> Shard | str:
        """Open a shard from its stored bytes. Returns the shard, or a description of its fault."""
        if fault is not None:
            return fault
        raw = memoryview(stored)
        if info.zipped is not None:
            raw = self._free_buffer(info.raw.bytes + 1)
            fault = decompress_checked(stored, info, raw, checks_hash=True)
            if fault is not None:
                return fault
        try:
            shard = Shard(Path(info.raw.name), info, raw[: info.raw.bytes].toreadonly())
        except DatasetError as error:
            return str(error).removeprefix(f"{info.raw.name} ")
        shard.url = str(location)
        return shard

    def _free_buffer(self, size: int) -> memoryview:
        """Return a buffer of `size` bytes. Reuses the last buffer unless it is still in use.

        Reuse is faster, because the kernel has already allocated the buffer's pages.
        """
        try:
            # resizing fails if a shard or one of its values still refers to the buffer
            self._buffer.append(0)
            self._buffer.pop()
        except BufferError:
            self._buffer = bytearray()
        if len(self._buffer) < size:
            self._buffer = bytearray(-(-size // _BUFFER_STEP) * _BUFFER_STEP)
        return memoryview(self._buffer)[:size]


def _fits(dataset: Dataset, info: shard_entries.ShardInfo) -> bool:
    # the size of a virtual shard is only known once it was written
    is_stored_alone = not is_in_place(dataset, info) and not info.is_virtual
    return is_stored_alone and info.raw.bytes <= MOST_BYTES
