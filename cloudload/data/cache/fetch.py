"""Fetch a shard into the cache. One process downloads it, and others see it only once it is valid.

    valid on disk? ─ yes ─────────────────────────────────────────────────────────► path
      │ no
    lock ─► valid by now? ─► reserve bytes (evicts) ─► download ─► check ─► rename ─► path

A process checks a shard's size and header before it maps the file. With `verify="once"`, it also
checks the hash, unless the file is unmodified since this user or root last verified it. With
"always", it checks the hash every time, and with "off", never. An invalid shard is fetched again.
So is a modified shard whose hash is not in the index, except with "off". The kernel releases the
lock of a killed process, and the next process that fetches the shard removes the partial file.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from cloudload.data.cache.counters import TrafficCounter
from cloudload.data.cache.folder import dataset_folder, shard_path
from cloudload.data.cache.republished import check_fetched
from cloudload.data.cache.space import publish, remove, reserve
from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.download import (
    Download,
    check_hash,
    check_header,
    describe_second_fault,
    download_shard,
)
from cloudload.data.mds.hashes import fastest_hash
from cloudload.data.mds.index import ShardInfo
from cloudload.data.storage.base import Retry
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import join_url
from cloudload.errors import CacheError, DatasetError
from cloudload.system.activity import refresh
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import PART_SUFFIX, lock_path, make_folder
from cloudload.system.verified_files import is_marked, is_unmodified, mark_verified

logger = logging.getLogger("cloudload.cache")

ONCE, ALWAYS, OFF = "once", "always", "off"
"""When a shard in the cache is checked: once per download, at each use, or never."""
Verification = Literal["once", "always", "off"]


@dataclass(frozen=True)
class _Watch:
    """The observer of a download, which counts its retries and records why it is waiting."""

    url: str
    traffic: TrafficCounter
    waits: dict[str, str]

    def count_retry(self) -> None:
        self.traffic.count_retry()

    def describe(self, wait: str) -> None:
        self.waits[self.url] = wait
        refresh()


@dataclass(frozen=True)
class Fetcher:
    """Fetches shards into the cache folder `root`. Safe across threads and processes."""

    root: Path
    retry: Retry
    limit_bytes: int | None
    verify: str
    """When to check hashes: `once`, `always` or `off`."""
    traffic: TrafficCounter
    _waits: dict[str, str] = field(default_factory=dict)
    """Maps the URL of each slow or failed download to a description of its wait."""

    def fetch(
        self, number: int, dataset: Dataset, info: ShardInfo, *, wait: bool = True
    ) -> Path | None:
        """Fetch a raw shard unless it is on disk and valid, and return its path.

        `number` is the shard's index in the corpus. Returns None if `wait` is False and another
        thread or process is fetching the shard. Raises `StoreError` if the download fails,
        `DatasetError` if two downloads are invalid, or if the shard has no hash and is newer than
        the cache folder, and `CacheError` if the shard does not fit in the cache or cannot be
        written to it.
        """
        folder = dataset_folder(self.root, dataset)
        path = shard_path(folder, info)
        if self._is_valid(path, info):
            return path
        self.traffic.count_miss(number)
        try:
            make_folder(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(folder.resolve()):
                raise CacheError(
                    f"{path} is outside the cache folder {folder}, because of a symbolic link. "
                    "Remove the link, and run again"
                )
            url = join_url(dataset.url, info.stored.name)
            what = partial(self._describe_lock, url)
            with locked(lock_path(path), wait=wait, what=what) as is_held:
                if not is_held:
                    return None
                if not self._is_valid(path, info):
                    self._fetch_locked(folder, dataset, info)
        except OSError as error:
            raise CacheError(self._explain(error, info)) from error
        return path

    def describe(self, dataset: Dataset, info: ShardInfo) -> str:
        """Describe the download of a shard, and why it is waiting, for a message."""
        url = join_url(dataset.url, info.stored.name)
        wait = self._waits.get(url)
        return f"downloading {redact(url)}" + (f" ({wait})" if wait else "")

    def _describe_lock(self, url: str) -> str:
        """Describe the wait for a shard that another process downloads.

        That process may be waiting for a lock that a thread of this process holds, so the text also
        includes this process's longest wait.
        """
        own = next(iter(list(self._waits.items())), None)
        here = f"; this process is downloading {redact(own[0])} ({own[1]})" if own else ""
        return f"download {redact(url)}{here}"

    def discard(self, path: Path, info: ShardInfo) -> None:
        """Remove a cached shard whose size or header is invalid.

        Checks the shard again first, because another process may have replaced it.
        """
        with contextlib.suppress(FileNotFoundError), locked(lock_path(path)):
            if fault := check_header(path, info):
                logger.warning("%s %s. Fetching it again", path, fault)
                remove(self.root, [path])

    def _is_valid(self, path: Path, info: ShardInfo) -> bool:
        """Whether a cached shard exists and is valid. `verify` says when to check its hash."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != info.raw.bytes:
            fault = f"is not a regular file of {info.raw.bytes:,} bytes"
            logger.warning("%s %s. Fetching it again", path, fault)
            return False
        has_hash = fastest_hash(info.raw.hashes) is not None
        checks_again = self.verify == ALWAYS and has_hash
        if self.verify == OFF or (is_unmodified(found) and not checks_again):
            return True
        if not has_hash:
            # a modified file cannot be verified without a hash, and neither can another user's
            return is_marked(found)
        with contextlib.suppress(FileNotFoundError):
            fault_found = check_hash(path, info) or check_header(path, info)
            if fault_found is None:
                mark_verified(path)
                return True
            logger.warning("%s %s. Fetching it again", path, fault_found)
        return False

    def _fetch_locked(self, folder: Path, dataset: Dataset, info: ShardInfo) -> None:
        path, url = shard_path(folder, info), join_url(dataset.url, info.stored.name)
        remove(self.root, [path, *path.parent.glob(f"{path.name}.*{PART_SUFFIX}")])
        try:
            self._download(folder, dataset, info)
        finally:
            self._waits.pop(url, None)

    def _download(self, folder: Path, dataset: Dataset, info: ShardInfo) -> None:
        path, url = shard_path(folder, info), join_url(dataset.url, info.stored.name)

        began = time.monotonic()
        with reserve(self.root, path, info.raw.bytes, self.limit_bytes) as (part, file):
            for attempt in (1, 2):
                fault, version = self._download_once(url, info, file)
                if fault is None:
                    file.flush()
                    fault = check_header(part, info)
                if fault is None:
                    if self.verify != OFF:
                        check_fetched(folder, dataset, info, version)
                    # without fsync, a crash could leave unwritten bytes in a file that looks valid
                    os.fsync(file.fileno())
                    if self.verify != OFF:
                        mark_verified(part)
                    publish(self.root, part, path)
                    seconds = time.monotonic() - began
                    self.traffic.count_fetch(redact(url), info.stored.bytes, seconds)
                    return
                if attempt == 1:
                    logger.warning("%s %s. Fetching it again", redact(url), fault)
        raise DatasetError(describe_second_fault(url, str(fault)))

    def _download_once(self, url: str, info: ShardInfo, file: BinaryIO) -> Download:
        times = [time.perf_counter_ns()]

        def count_bytes(number: int) -> None:
            times.append(time.perf_counter_ns())
            self.traffic.count_download(number, times[1] - times[0])

        found = download_shard(
            url,
            info,
            file,
            self.retry,
            checks_hash=self.verify != OFF,
            count_bytes=count_bytes,
            watch=_Watch(url, self.traffic, self._waits),
        )
        self.traffic.count_unpacking(time.perf_counter_ns() - times[-1])
        return found

    def _explain(self, error: OSError, info: ShardInfo) -> str:
        what = f"{info.raw.name} ({info.raw.bytes:,} bytes)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"no space left in {self.root} for {what}: {error}. Free some space, set `local` "
                "to a different folder, or set or lower cache_limit"
            )
        return (
            f"cannot write {what} to the cache folder {self.root}: {error}. Fix the cause, or set "
            "`local` to a different folder"
        )
