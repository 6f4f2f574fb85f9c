"""The shard cache: plain files that the processes of a node share, each fetched once, whole, or not
at all.

    root/<dataset>-<hash>/shard.00000.mds                     a whole, raw, checked shard
    root/<dataset>-<hash>/shard.00000.mds.lock                held by whoever fetches it
    root/<dataset>-<hash>/shard.00000.mds.<random>.part       its reserved bytes until then

A folder belongs to one dataset as published: its name has the hash of URL and index. Whoever needs
a shard takes its lock, reserves its bytes (evicting the least recently used shards), fetches,
checks, seals and renames. A shard that is there is checked when a process first opens it: size and
head, and where its seal is broken, its hash; one that fails is fetched again. The kernel frees the
lock of a killed process; the next one to look sweeps up what it left. A raw shard of a local
dataset is mapped where it lies and never touched.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

from cloudload.cache.counters import TrafficCounter
from cloudload.cache.download import download_shard, fault_of_hash, fault_of_head
from cloudload.cache.folder import _own_files, _stat, _sweep_up, dataset_folder
from cloudload.config import ALWAYS, OFF
from cloudload.errors import CacheError, DatasetError
from cloudload.mds.dataset import Corpus, Dataset, is_in_place
from cloudload.mds.hashes import fastest_hash
from cloudload.mds.index import ShardInfo
from cloudload.mds.shard import Shard
from cloudload.storage.base import Retry
from cloudload.storage.redaction import hide_secrets
from cloudload.storage.urls import join_url, local_path
from cloudload.system.daemon_threads import Daemons
from cloudload.system.file_locks import locked, locked_if_free
from cloudload.system.temp_files import (
    LOCK_SUFFIX,
    PART_SUFFIX,
    is_left_over,
    lock_of,
    make_folder,
    part_of,
)
from cloudload.system.verified_files import is_sealed, seal, touch

logger = logging.getLogger(__name__)

# each is one of the process's open files, of which half are left to others
_MOST_OPEN_SHARDS = 2_048

_TOUCH_EVERY_S = 10.0

_ATTEMPTS = 3

_CLOSE_S = 2.0


class ShardCache:
    """The shards of a corpus, by number. One per process, for one of its threads; threads of its
    own fetch ahead."""

    def __init__(
        self,
        corpus: Corpus,
        root: Path,
        retry: Retry,
        *,
        limit_bytes: int | None = None,
        threads: int = 4,
        verify: str,
    ) -> None:
        self._corpus, self._root, self._retry, self._limit_bytes, self._verify = (
            corpus,
            root,
            retry,
            limit_bytes,
            verify,
        )
        self._open: OrderedDict[int, tuple[Shard, float]] = OrderedDict()
        self._looked = time.monotonic()
        self._fetches: dict[int, Future[Path | None]] = {}
        self._daemons = Daemons(threads, "cloudload-fetch")
        self.traffic = TrafficCounter()
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = (
            _MOST_OPEN_SHARDS
            if open_files == resource.RLIM_INFINITY
            else min(_MOST_OPEN_SHARDS, open_files // 2)
        )

    def shard(self, number: int) -> Shard:
        """The mapped shard; waits for it to be fetched. Raises what kept it from being fetched."""
        if number in self._open:
            shard, touched = self._open[number]
            self._open.move_to_end(number)
            if time.monotonic() - touched > _TOUCH_EVERY_S:
                self._keep(number, shard)
            return shard
        dataset, info = self._info(number)
        if is_in_place(dataset, info):
            return self._open_in_place(number, dataset, info)
        for attempt in range(_ATTEMPTS):
            fetch = self._fetches.pop(number, None)
            path = (fetch.result() if fetch else None) or self._fetch(number)
            assert path is not None
            try:
                shard = Shard(path, info)
            except FileNotFoundError:
                continue  # evicted between the fetch and the map
            except DatasetError:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._discard(path, info)
                continue
            self.traffic.count_open(number)
            self._keep(number, shard)
            return shard
        raise CacheError(
            f"{path} is evicted as soon as it is fetched. Raise cache_limit: "
            "the shards in use do not fit"
        )

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch shards in the background, in this order; an error waits until the shard is asked
        for."""
        for number in numbers:
            if (
                number not in self._open
                and number not in self._fetches
                and not is_in_place(*self._info(number))
            ):
                self._fetches[number] = self._daemons.submit(self._fetch_if_free, number)

    def close(self) -> None:
        """Stop fetching and let go of every shard; what the store holds up for longer ends by
        itself, or with the process."""
        self._daemons.close(_CLOSE_S)
        self._open.clear()
        self._fetches.clear()

    def _info(self, number: int) -> tuple[Dataset, ShardInfo]:
        owner, shard = self._corpus.shard_owners[number]
        dataset = self._corpus.datasets[owner]
        return dataset, dataset.shards[shard]

    def _open_in_place(self, number: int, dataset: Dataset, info: ShardInfo) -> Shard:
        path = local_path(dataset.url) / info.raw.name
        try:
            shard = Shard(path, info)
            if self._verify == ALWAYS and (fault := fault_of_hash(path, info)):
                raise DatasetError(f"{path} {fault}. Convert or copy it again")
        except FileNotFoundError:
            raise DatasetError(
                f"{path} is not there, though the index of {dataset.url} lists "
                "it. Convert or copy it again"
            ) from None
        self._keep(number, shard)
        return shard

    def _keep(self, number: int, shard: Shard) -> None:
        dataset, info = self._info(number)
        shard.url = hide_secrets(join_url(dataset.url, info.stored.name))
        if not is_in_place(dataset, info):
            touch(shard.path)
        self._open[number] = (shard, time.monotonic())
        self._open.move_to_end(number)
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)
        if self._limit_bytes is not None and time.monotonic() - self._looked > _TOUCH_EVERY_S:
            self._let_go_of_evicted()

    def _let_go_of_evicted(self) -> None:
        """What another process has evicted takes its bytes for as long as it is mapped here."""
        self._looked = time.monotonic()
        for number, (shard, _) in list(self._open.items()):
            if not shard.path.exists():
                del self._open[number]

    # ------------------------------------------------------------ fetching

    def _fetch(self, number: int) -> Path:
        """Fetch a shard, if it is not there; waits for another process that is at it."""
        path = self._fetch_under(locked, number)
        assert path is not None
        return path

    def _fetch_if_free(self, number: int) -> Path | None:
        """As `_fetch`, but None where another process is at it: this one had better fetch
        others."""
        return self._fetch_under(locked_if_free, number)

    def _fetch_under(
        self, lock: Callable[[Path], contextlib.AbstractContextManager[bool]], number: int
    ) -> Path | None:
        dataset, info = self._info(number)
        folder = dataset_folder(self._root, dataset)
        path = folder / info.raw.name
        if self._is_sound(path, info):
            return path
        self.traffic.count_miss(number)
        try:
            make_folder(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(folder.resolve()):
                raise CacheError(f"{path} leads out of the cache by a link. Remove {folder}")
            with lock(lock_of(path)) as is_held:
                if not is_held:
                    return None
                if not self._is_sound(path, info):
                    self._fetch_locked(dataset, info, path)
        except OSError as error:
            raise CacheError(f"{self._explain(error, info)} ({error})") from error
        return path

    def _is_sound(self, path: Path, info: ShardInfo) -> bool:
        """Whether a cached shard is there, whole, and as it was when it was checked; checks it
        where that is not known."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != info.raw.bytes:
            logger.warning(
                "%s is not the file of %d bytes that it should be; it is fetched again",
                path,
                info.raw.bytes,
            )
            return False
        has_hash = fastest_hash(info.raw.hashes) is not None
        if self._verify == OFF or (is_sealed(found) and not (self._verify == ALWAYS and has_hash)):
            return True
        if not has_hash:
            return False  # nothing tells what was written to it
        with contextlib.suppress(FileNotFoundError):
            fault = fault_of_hash(path, info) or fault_of_head(path, info)
            if fault is None:
                seal(path)
                return True
            logger.warning("%s %s; it is fetched again", path, fault)
        return False

    def _fetch_locked(self, dataset: Dataset, info: ShardInfo, path: Path) -> None:
        path.unlink(missing_ok=True)
        for left_over in path.parent.glob(f"{path.name}.*{PART_SUFFIX}"):
            left_over.unlink(missing_ok=True)
        url = join_url(dataset.url, info.stored.name)
        with self._reserved(path, info.raw.bytes) as (part, file):
            for attempt in (1, 2):
                checks_hash, count_bytes = self._verify != OFF, self.traffic.count_bytes
                fault = download_shard(
                    url, info, file, self._retry, checks_hash=checks_hash, count_bytes=count_bytes
                )
                if fault is None:
                    file.flush()
                    fault = fault_of_head(part, info)
                if fault is None:
                    os.fsync(
                        file.fileno()
                    )  # reserved bytes that were never written would pass for a whole shard
                    if self._verify != OFF:
                        seal(part)
                    part.replace(path)
                    return
                if attempt == 1:
                    logger.warning("%s %s; it is fetched again", hide_secrets(url), fault)
        raise DatasetError(
            f"{hide_secrets(url)} {fault}, twice. "
            "If the dataset was published anew meanwhile, start again; else upload the shard again"
        )

    def _discard(self, path: Path, info: ShardInfo) -> None:
        """Remove a bad shard, unless another process has fetched it again meanwhile."""
        with contextlib.suppress(FileNotFoundError), locked(lock_of(path)):
            if fault := fault_of_head(path, info):
                logger.warning("%s %s; it is fetched again", path, fault)
                path.unlink()

    def _explain(self, error: OSError, info: ShardInfo) -> str:
        what = f"{info.raw.name} ({info.raw.bytes:,} bytes)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"no space left in {self._root} for {what}. Free some, choose another `local`, "
                "or set cache_limit"
            )
        return f"cannot write {what} to the cache {self._root}. Choose another `local`"

    @contextlib.contextmanager
    def _reserved(self, path: Path, size: int) -> Iterator[tuple[Path, BinaryIO]]:
        """A file beside `path` that holds `size` bytes of disk; gone afterwards unless it was
        renamed."""
        with part_of(path) as part:
            with locked(self._root / f"space{LOCK_SUFFIX}"):
                if self._limit_bytes is not None:
                    self._make_room(size, self._limit_bytes)
                file = part.open("w+b")
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
            with file:
                yield part, file

    def _make_room(self, size: int, limit: int) -> None:
        files = [(path, found) for path in _own_files(self._root, [""]) if (found := _stat(path))]
        parts = [
            (path, found)
            for path, found in files
            if path.suffix == PART_SUFFIX and not _sweep_up(path)
        ]
        shards = [(path, found) for path, found in files if not is_left_over(path)]
        used = sum(found.st_size for _, found in parts + shards)
        for path, found in sorted(shards, key=lambda item: item[1].st_atime_ns):
            if used + size <= limit:
                return
            path.unlink(missing_ok=True)
            used -= found.st_size
        if used + size > limit:
            raise CacheError(
                f"cache_limit {limit:,} is too small for {self._root}: "
                f"{used:,} bytes are being fetched "
                f"and {size:,} more are needed. Raise it to {used + size:,} or more"
            )
