"""Fetch shards into a cache of limited size. One process downloads a shard, and all share the file.

    valid on disk? ─ yes ─────────────────────────────────────────────────────────► path
      │ no
    lock ─► valid by now? ─► reserve bytes (evicts) ─► download ─► check ─► rename ─► path

    reserve ─► used + size ≤ limit? ─ yes ──────────────────────────────────► partial file
                 │ no
               evict this process's oldest candidate, unless it was used again ─► …
                 │ there are no more candidates
               list all files: the bytes used, and new candidates ─► …

Other processes see a shard only once it is valid. A process checks a shard's size and header before
it maps the file. With `verify="once"`, it also checks the hash, unless the file is unmodified since
this user or root last verified it. With "always", it checks the hash every time, and with "off",
never. An invalid shard is fetched again. So is a modified shard whose hash is not in the index,
except with "off". The kernel releases the lock of a killed process, and the next process that
fetches the shard removes the partial file.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import logging
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from cloudload.data.cache.cache_folder import (
    ACCOUNT,
    dataset_folder,
    shard_files,
    shard_path,
    space_lock,
)
from cloudload.data.cache.counters import TrafficCounter
from cloudload.data.cache.republished import check_fetched
from cloudload.data.mds import shard_entries
from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.download import (
    Download,
    check_header,
    check_raw_shard,
    describe_second_fault,
    download_shard,
)
from cloudload.data.mds.encoded_rows import Transfer
from cloudload.data.mds.hashes import fastest_hash
from cloudload.data.mds.open_index import forget_index
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_start import open_samples
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, DatasetError
from cloudload.system import Ints, activity, file_locks, machine, temp_files, verified_files

logger = logging.getLogger("cloudload.cache")

ONCE, ALWAYS, OFF = "once", "always", "off"
"""When a shard in the cache is checked: once per download, at each use, or never."""
Verification = Literal["once", "always", "off"]

_LAYOUT = struct.Struct("<8sqdd")
_FORMAT = b"space 2\n"
_MOST_AGE_S, _MOST_AGE_IN_LISTINGS = 600.0, 100
MOST_CANDIDATES = 10_000


@dataclass(frozen=True)
class _Watch:
    """The observer of a download, which counts its retries and records why it is waiting."""

    location: Location
    traffic: TrafficCounter
    waits: dict[Location, str]

    def count_retry(self) -> None:
        self.traffic.count_retry()

    def describe(self, wait: str) -> None:
        self.waits[self.location] = wait
        activity.refresh()


@dataclass(frozen=True)
class Fetcher:
    """Fetches shards into the cache folder `root`. Safe across threads and processes."""

    root: Path
    limit_bytes: int | None
    verify: str
    """When to check hashes: `once`, `always` or `off`."""
    traffic: TrafficCounter
    _waits: dict[Location, str] = field(default_factory=dict)
    """Maps the location of each slow or failed download to a description of its wait."""

    def fetch(
        self, index: int, dataset: Dataset, info: shard_entries.ShardInfo, *, wait: bool = True
    ) -> Path | None:
        """Fetch a raw shard unless it is on disk and valid, and return its path.

        `index` is the shard's index in the corpus. Returns None if `wait` is False and another
        thread or process is fetching the shard. Raises `StoreError` if the download fails,
        `DatasetError` if two downloads are invalid, or if the shard has no hash and is newer than
        the cache folder, and `CacheError` if the shard does not fit in the cache or cannot be
        written to it.
        """
        folder = dataset_folder(self.root, dataset)
        path = shard_path(folder, info)
        if self._is_valid(path, info):
            return path
        self.traffic.count_miss(index)
        try:
            temp_files.make_folder(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(folder.resolve()):
                raise CacheError(
                    f"{path} is outside the cache folder {folder}, because of a symbolic link. "
                    "Remove the link, and run again"
                )
            what = partial(self._describe_lock, dataset.locate(info))
            with file_locks.locked(temp_files.lock_path(path), wait=wait, what=what) as is_held:
                if not is_held:
                    return None
                if not self._is_valid(path, info):
                    self._fetch_locked(folder, dataset, info)
        except OSError as error:
            raise CacheError(self._explain(error, info)) from error
        return path

    def read_samples(
        self, dataset: Dataset, info: shard_entries.ShardInfo, samples: Ints
    ) -> Shard | None:
        """Read only `samples` of a virtual shard, as `open_samples` does, if it is not on disk.

        Returns None if it is. Raises the errors of `open_samples`.
        """
        if self._is_valid(shard_path(dataset_folder(self.root, dataset), info), info):
            return None
        location, began = dataset.locate(info), time.perf_counter_ns()

        def count_bytes(num_bytes: int) -> None:
            self.traffic.count_download(num_bytes, time.perf_counter_ns() - began)

        watch = _Watch(location, self.traffic, self._waits)
        try:
            return open_samples(dataset, info, samples, Transfer(count_bytes, watch=watch))
        finally:
            self._waits.pop(location, None)

    def describe(self, dataset: Dataset, info: shard_entries.ShardInfo) -> str:
        """Describe the download of a shard, and why it is waiting, for a message."""
        location = dataset.locate(info)
        wait = self._waits.get(location)
        return f"downloading {location}" + (f" ({wait})" if wait else "")

    def _describe_lock(self, location: Location) -> str:
        """Describe the wait for a shard that another process downloads.

        That process may be waiting for a lock that a thread of this process holds, so the text also
        includes this process's longest wait.
        """
        own = next(iter(list(self._waits.items())), None)
        here = f"; this process is downloading {own[0]} ({own[1]})" if own else ""
        return f"download {location}{here}"

    def discard(self, path: Path, info: shard_entries.ShardInfo) -> None:
        """Remove a cached shard whose size or header is invalid.

        Checks the shard again first, because another process may have replaced it.
        """
        with contextlib.suppress(FileNotFoundError), file_locks.locked(temp_files.lock_path(path)):
            if fault := check_header(path, info):
                logger.warning("%s %s. Fetching it again", path, fault)
                remove(self.root, [path])

    def _is_valid(self, path: Path, info: shard_entries.ShardInfo) -> bool:
        """Whether a cached shard exists and is valid. `verify` says when to check its hash."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        is_of_size = info.is_virtual or found.st_size == info.raw.bytes
        if not stat.S_ISREG(found.st_mode) or not is_of_size:
            fault = f"is not a regular file of {info.raw.bytes:,} bytes"
            logger.warning("%s %s. Fetching it again", path, fault)
            return False
        has_hash = info.is_virtual or fastest_hash(info.raw.hashes) is not None
        checks_again = self.verify == ALWAYS and has_hash
        if self.verify == OFF or (verified_files.is_unmodified(found) and not checks_again):
            return True
        if not has_hash:
            # a modified file cannot be verified without a hash, and neither can another user's
            return verified_files.is_marked(found)
        with contextlib.suppress(FileNotFoundError):
            fault_found = check_raw_shard(path, info)
            if fault_found is None:
                verified_files.mark_verified(path)
                return True
            logger.warning("%s %s. Fetching it again", path, fault_found)
        return False

    def _fetch_locked(self, folder: Path, dataset: Dataset, info: shard_entries.ShardInfo) -> None:
        path = shard_path(folder, info)
        remove(self.root, [path, *path.parent.glob(f"{path.name}.*{temp_files.PART_SUFFIX}")])
        try:
            self._download(folder, dataset, info)
        finally:
            self._waits.pop(dataset.locate(info), None)

    def _download(self, folder: Path, dataset: Dataset, info: shard_entries.ShardInfo) -> None:
        path, location = shard_path(folder, info), dataset.locate(info)
        began = time.monotonic()
        with reserve(self.root, path, info.raw.bytes, self.limit_bytes) as reserved:
            part, file = reserved.path, reserved.file
            for attempt in (1, 2):
                fault, version = self._download_once(location, info, reserved)
                if fault is None:
                    file.flush()
                    fault = check_header(part, info)
                if fault is None:
                    if self.verify != OFF:
                        check_fetched(folder, dataset, info, version)
                    # without fsync, a crash could leave unwritten bytes in a file that looks valid
                    os.fsync(file.fileno())
                    if self.verify != OFF:
                        verified_files.mark_verified(part)
                    publish(self.root, part, path)
                    seconds = time.monotonic() - began
                    self.traffic.count_fetch(str(location), info.stored.bytes, seconds)
                    return
                if attempt == 1:
                    logger.warning("%s %s. Fetching it again", location, fault)
        forget_index(dataset.table)
        raise DatasetError(describe_second_fault(location, info, str(fault)))

    def _download_once(
        self, location: Location, info: shard_entries.ShardInfo, reserved: Reservation
    ) -> Download:
        times = [time.perf_counter_ns()]

        def count_bytes(num_bytes: int) -> None:
            times.append(time.perf_counter_ns())
            self.traffic.count_download(num_bytes, times[1] - times[0])

        found = download_shard(
            location,
            info,
            reserved.file,
            checks_hash=self.verify != OFF,
            count_bytes=count_bytes,
            watch=_Watch(location, self.traffic, self._waits),
            resize=reserved.resize,
        )
        self.traffic.count_unpacking(time.perf_counter_ns() - times[-1])
        return found

    def _explain(self, error: OSError, info: shard_entries.ShardInfo) -> str:
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


@dataclass
class _Account:
    """The number of bytes that a cache uses (None if unknown), and when it was last listed.

    Once a process has a limit, a file in `root`, the account, records how many bytes all shards and
    partial files have. It is read and written under `root/space.lock`. A process that changes files
    removes the account first, and writes it when it is done. So if the process is killed, the next
    process lists all files.

    Other users, older versions, and people may add or remove files without changing the account. To
    find such changes, all files are listed when a loader starts, before a reservation fails, and
    ten minutes after the last listing. If that took more than 6 s, the next listing is later, so
    that listings take at most 1 % of the time.
    """

    used: int | None = None
    listed_s: float = 0.0
    """When the files were last listed, in seconds since 1970."""
    listing_s: float = 0.0
    """How long the last listing took, in seconds."""

    def add(self, size: int) -> None:
        if self.used is not None:
            self.used += size


class _Candidate(NamedTuple):
    used_ns: int
    """When the shard was last used, as `st_atime_ns`."""
    bytes: int
    path: Path


_candidates: dict[Path, deque[_Candidate]] = {}
"""The least recently used shards of each cache, the oldest first, from this process's listing."""


@dataclass
class Reservation:
    """A partial file in a cache, whose bytes are reserved."""

    root: Path
    path: Path
    file: BinaryIO
    limit_bytes: int | None
    bytes: int = 0
    """The number of bytes reserved so far."""

    def resize(self, size: int) -> None:
        """Reserve `size` bytes in total, or fewer than before. Raises the errors of `reserve`."""
        with _changing(self.root) as account:
            if self.limit_bytes is not None and size > self.bytes:
                _make_room(self.root, account, size - self.bytes, self.limit_bytes)
            self.allocate(account, size)

    def allocate(self, account: _Account, size: int) -> None:
        """Change the size of the file, for which there is room, and the account."""
        if size > self.bytes:
            machine.allocate(self.file.fileno(), self.bytes, size - self.bytes)
        elif size < self.bytes:
            os.ftruncate(self.file.fileno(), size)
        account.add(size - self.bytes)
        self.bytes = size


@contextlib.contextmanager
def reserve(root: Path, path: Path, size: int, limit_bytes: int | None) -> Iterator[Reservation]:
    """Reserve `size` bytes in a partial file beside `path`; yield the reservation.

    The file is removed at the end unless the caller published it (`publish`). Shards are evicted to
    stay within `limit_bytes` (None for no limit). Raises `CacheError` if evicting all of them is
    not enough, and `OSError` if the disk is full or the file cannot be created.
    """
    with temp_files.partial_file(path) as part, contextlib.ExitStack() as stack:
        with _changing(root) as account:
            if limit_bytes is not None:
                _make_room(root, account, size, limit_bytes)
            file = stack.enter_context(part.open("w+b"))
            reserved = Reservation(root, part, file, limit_bytes)
            reserved.allocate(account, size)
        try:
            yield reserved
        finally:
            if part.exists():
                # if this fails, `partial_file` removes the file, but the account includes it until
                # the next listing of all files
                with contextlib.suppress(OSError), _changing(root) as account:
                    part.unlink(missing_ok=True)
                    account.add(-reserved.bytes)


def publish(root: Path, part: Path, path: Path) -> None:
    """Rename a partial file to the shard at `path`. A listing never counts both files."""
    with file_locks.locked(space_lock(root)):
        part.replace(path)


def remove(root: Path, paths: list[Path]) -> None:
    """Remove invalid files from the cache, if they exist."""
    if found := [path for path in paths if os.path.lexists(path)]:
        with file_locks.locked(space_lock(root)):
            _take(root)  # drop the account, which may not include files that others have added
            for path in found:
                path.unlink(missing_ok=True)


# ---------------------------------------------------------------- the account


@contextlib.contextmanager
def _changing(root: Path) -> Iterator[_Account]:
    """Lock and yield a cache's account, and write it at the end. An error leaves it unknown."""
    with file_locks.locked(space_lock(root)):
        account = _take(root)
        yield account
        if account.used is not None:
            _write(root, account)


def _read(root: Path) -> _Account:
    with contextlib.suppress(OSError, struct.error):
        kind, used, listed_s, listing_s = _LAYOUT.unpack((root / ACCOUNT).read_bytes())
        most_age_s = max(_MOST_AGE_S, _MOST_AGE_IN_LISTINGS * listing_s)
        if kind == _FORMAT and 0 <= time.time() - listed_s <= most_age_s:
            return _Account(used, listed_s, listing_s)
    return _Account()


def _take(root: Path) -> _Account:
    """Read the account and remove its file. If that fails, return an unknown account."""
    account = _read(root)
    with contextlib.suppress(OSError):
        (root / ACCOUNT).unlink()
        return account
    return _Account()


def _write(root: Path, account: _Account) -> None:
    """Write the account. If that fails, for instance on a full disk, the account stays unknown."""
    path = root / ACCOUNT
    with contextlib.suppress(OSError):
        with contextlib.suppress(OSError), path.open("xb", 0) as file:
            values = account.used, account.listed_s, account.listing_s
            file.write(_LAYOUT.pack(_FORMAT, *values))
            return
        path.unlink()


# ---------------------------------------------------------------- eviction


def _make_room(root: Path, account: _Account, size: int, limit_bytes: int) -> None:
    """Evict the least recently used shards until `size` more bytes fit, or raise `CacheError`."""
    can_evict = True
    while account.used is None or account.used + size > limit_bytes:
        if account.used is not None and _evict(root, account):
            continue
        if account.used is not None and not can_evict:
            raise CacheError(
                f"cache_limit {limit_bytes:,} is too small for {root}, because {account.used:,} "
                f"bytes are being fetched and {size:,} more are needed. Raise it to "
                f"{account.used + size:,} or more"
            )
        start_s = time.monotonic()
        account.used = _list_all(root)
        account.listed_s, account.listing_s = time.time(), time.monotonic() - start_s
        can_evict = bool(_candidates[root])


def _evict(root: Path, account: _Account) -> bool:
    """Evict the oldest candidate unless it was used again. Returns False if there is none.

    A shard that no process has used since a listing is older than every shard that was used or
    added since then. So processes evict the same shards as if they listed all files before each
    eviction.
    """
    candidates = _candidates.get(root)
    if not candidates:
        return False
    used_ns, size, path = candidates.popleft()
    found = _stat(path)
    if found is not None and (found.st_atime_ns, found.st_size) == (used_ns, size):
        path.unlink(missing_ok=True)
        account.add(-size)
    return True


def _list_all(root: Path) -> int:
    """List all files, find candidates for eviction, and return the bytes used."""
    used = 0

    def find_shards() -> Iterator[_Candidate]:
        nonlocal used
        for path in shard_files(root):
            if temp_files.is_temporary(path.name) and (
                path.suffix != temp_files.PART_SUFFIX or file_locks.remove_if_orphaned(path)
            ):
                continue
            if found := _stat(path):
                used += found.st_size
                # NFS renames a file that is removed while mapped, so evicting it frees no space
                if not temp_files.is_temporary(path.name) and not path.name.startswith(".nfs"):
                    yield _Candidate(found.st_atime_ns, found.st_size, path)

    _candidates[root] = deque(heapq.nsmallest(MOST_CANDIDATES, find_shards()))
    return used


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None
