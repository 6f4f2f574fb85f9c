"""The shard cache of one process, which maps shards into memory and prefetches them in threads.

    prefetch({7: None, 8: None}) ──► threads ──► fetch ──► files on disk, shared by the node
    shard(7) ── maps the file ──► Shard          unmapped by LRU above `_most_open`

    prefetch({7: [3, 90]}) ──► threads ──► the row groups of these samples, not in the cache
    shard(7, [3, 90])      ──► Shard       with no other samples

A mapped shard stays readable after its file is evicted. An uncompressed shard of a local dataset is
mapped in place, and never copied or modified. Only Parquet files are read in part.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from cloudload.data.cache.counters import TrafficCounter
from cloudload.data.cache.fetch import ALWAYS, OFF, Fetcher
from cloudload.data.cache.republished import check_in_place
from cloudload.data.mds import shard_entries
from cloudload.data.mds.dataset import Corpus, Dataset, is_in_place
from cloudload.data.mds.download import check_hash
from cloudload.data.mds.shard import Shard
from cloudload.data.storage import urls
from cloudload.errors import CacheError, DatasetError
from cloudload.system import DaemonThreadPool, Ints, activity, await_unless_failed, verified_files

logger = logging.getLogger("cloudload.cache")

# each mapped shard uses a file descriptor, and shards use at most half of the process's limit
MOST_OPEN_SHARDS = 2_048

# seconds between updates of a used shard's access time, and between checks for evicted shards
TOUCH_EVERY_S = 10.0

_ATTEMPTS = 3

_CLOSE_S = 2.0


def _report_wait(waited_s: float, what: str) -> None:
    logger.warning("waited %.0f s for a shard: %s", waited_s, what)


class ShardCache:
    """The shards of a corpus, by index. Not thread-safe. Its own threads only prefetch."""

    def __init__(
        self,
        corpus: Corpus,
        root: Path,
        *,
        limit_bytes: int | None = None,
        threads: int = 4,
        verify: str,
        retries: Ints | None = None,
    ) -> None:
        self._corpus, self._verify, self._limit_bytes = corpus, verify, limit_bytes
        self.traffic = TrafficCounter(retries)
        self._fetcher = Fetcher(root, limit_bytes, verify, self.traffic)
        self._open: OrderedDict[int, tuple[Shard, float]] = OrderedDict()
        self._last_check = time.monotonic()
        self._wait = activity.Wait(_report_wait, "reading")
        self._fetches: dict[int, Future[Path | None]] = {}
        self._parts: dict[int, tuple[Ints, Future[Shard | None]]] = {}
        """The samples of shards that are read in part."""
        self._threads = DaemonThreadPool(threads, "cloudload-fetch")
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = MOST_OPEN_SHARDS
        if open_files != resource.RLIM_INFINITY:
            self._most_open = min(MOST_OPEN_SHARDS, open_files // 2)

    def shard(self, index: int, samples: Ints | None = None) -> Shard:
        """Return the shard with index `index`, mapped into memory; fetch it if necessary.

        With `samples`, int64 [n], the shard has only these if `prefetch` read only these.

        Raises `StoreError` if the download fails, and `DatasetError` if the shard is invalid, or is
        missing from a local dataset. Raises `CacheError` if the shard does not fit in the cache or
        cannot be written.
        """
        if index in self._open:
            shard, used_at = self._open[index]
            self._open.move_to_end(index)
            if time.monotonic() - used_at > TOUCH_EVERY_S:
                self._keep(index, shard)
            return shard
        if samples is not None and (part := self._find_part(index, samples)) is not None:
            return part
        dataset, info = self._corpus.find_shard(index)
        if is_in_place(dataset, info):
            shard = self._map_in_place(dataset, info)
        else:
            shard = self._map_cached(index, dataset, info)
            self.traffic.count_open(index)
        self._keep(index, shard)
        return shard

    def prefetch(self, shards: Mapping[int, Ints | None]) -> None:
        """Start fetching shards in the given order. If a fetch fails, `shard` fetches again.

        `shards` maps a shard to the samples in it that are needed, ascending int64 [n], if the
        shard may be read in part because the caller waits for them, or to None.
        """
        if any(samples is None for samples in shards.values()):
            self._parts.clear()
        for index, samples in shards.items():
            if index in self._open or index in self._fetches or self._corpus.is_in_place(index):
                continue
            dataset, info = self._corpus.find_shard(index)
            if samples is not None and _is_small_part(info, samples):
                read = self._fetcher.read_samples
                self._parts[index] = samples, self._threads.submit(read, dataset, info, samples)
            else:
                self._fetches[index] = self._threads.submit(self._prefetch, index, dataset, info)

    def close(self) -> None:
        """Stop prefetching and unmap every shard.

        Waits up to 2 s for downloads in progress. After that, they continue in the background.
        """
        self._threads.close(_CLOSE_S)
        self._open.clear()
        self._fetches.clear()
        self._parts.clear()

    def _prefetch(self, index: int, dataset: Dataset, info: shard_entries.ShardInfo) -> Path | None:
        # if another process is fetching this shard, do not wait, so that this thread fetches others
        return self._fetcher.fetch(index, dataset, info, wait=False)

    def _find_part(self, index: int, samples: Ints) -> Shard | None:
        """Return the part of a shard that has `samples`, or None if it cannot be used."""
        read, part = self._parts.get(index, (None, None))
        if read is None or not np.isin(samples, read).all():
            return None
        dataset, info = self._corpus.find_shard(index)
        # a shard that is damaged is fetched twice before this is an error
        with (
            contextlib.suppress(DatasetError),
            self._wait,
            activity.doing(lambda: self._fetcher.describe(dataset, info)),
        ):
            return await_unless_failed(part)
        return None

    def _map_cached(self, index: int, dataset: Dataset, info: shard_entries.ShardInfo) -> Shard:
        for attempt in range(_ATTEMPTS):
            fetch = self._fetches.pop(index, None)
            with (
                self._wait,
                activity.doing(lambda: self._fetcher.describe(dataset, info)),
            ):
                path = await_unless_failed(fetch) or self._fetcher.fetch(index, dataset, info)
            assert path is not None
            try:
                return Shard(path, info)
            except FileNotFoundError:
                continue  # the shard was evicted before it was mapped
            except DatasetError:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._fetcher.discard(path, info)
        raise CacheError(
            f"{path} was removed {_ATTEMPTS} times before it could be mapped. The shards in use "
            "may exceed cache_limit. Raise cache_limit in every job that shares the cache"
        )

    def _map_in_place(self, dataset: Dataset, info: shard_entries.ShardInfo) -> Shard:
        path = urls.local_path(dataset.url) / info.raw.name
        try:
            shard = Shard(path, info)
            if self._verify != OFF:
                check_in_place(dataset, info, path)
            if self._verify == ALWAYS and (fault := check_hash(path, info)):
                raise DatasetError(f"{path} {fault}. Convert or copy the dataset again")
        except FileNotFoundError:
            raise DatasetError(
                f"{path} is missing, but the index of {dataset.url} lists it. Convert or copy the "
                "dataset again"
            ) from None
        return shard

    def _keep(self, index: int, shard: Shard) -> None:
        dataset, info = self._corpus.find_shard(index)
        shard.url = str(dataset.locate(info))
        if not is_in_place(dataset, info):
            verified_files.mark_used(shard.path)
        self._open[index] = (shard, time.monotonic())
        self._open.move_to_end(index)
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)
        if self._limit_bytes is not None and time.monotonic() - self._last_check > TOUCH_EVERY_S:
            self._unmap_evicted()

    def _unmap_evicted(self) -> None:
        """Unmap evicted shards, because a deleted file uses disk space until it is unmapped."""
        self._last_check = time.monotonic()
        for index, (shard, _) in list(self._open.items()):
            if not shard.path.exists():
                del self._open[index]


def _is_small_part(info: shard_entries.ShardInfo, samples: Ints) -> bool:
    """Whether a shard has row groups of which `samples` are in at most half."""
    groups = info.part
    if not isinstance(groups, shard_entries.RowGroups):
        return False
    return 2 * len(samples) <= groups.stop - groups.first
