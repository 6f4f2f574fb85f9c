"""The node's shard cache: raw shards as plain files, fetched once, checked, shared by all processes, evicted when space is short.

    <root>/<dataset>-<hash>/shard.00000.mds           a whole, checked, raw shard
                            shard.00000.mds.lock      there while one process fetches it
                            shard.00000.mds.<x>.part  its reserved bytes until then

A folder belongs to one dataset as published: its name has the hash of URL and index. Whoever needs a shard takes its lock,
reserves its bytes (evicting the least recently used shards), fetches, checks, and renames. The kernel frees the lock of a
killed process; the next one to look sweeps up what it left. A raw shard of a local dataset is mapped where it lies and never
touched.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import logging
import os
import re
import resource
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from cloudload.backends import Retry
from cloudload.dataset import Corpus, Dataset, is_in_place
from cloudload.errors import CacheError, DatasetError
from cloudload.locations import join_url, local_path
from cloudload.locks import locked, locked_if_free
from cloudload.mds import FileInfo, Hasher, Shard, ShardInfo, decompress, fastest_hash
from cloudload.store import download_object

logger = logging.getLogger(__name__)

_PART_SUFFIX = ".part"
# each is one of the process's open files, of which half are left to others
_MOST_OPEN_SHARDS = 2_048
_TOUCH_EVERY_S = 10.0
_DATASET_FOLDER = re.compile(r"[A-Za-z0-9-]*-[0-9a-f]{16}")


def default_cache() -> Path:
    """The per-user cache folder: `$CLOUDLOAD_CACHE`, else `cloudload` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("CLOUDLOAD_CACHE") or Path(base, "cloudload")).expanduser()


def dataset_folder(root: Path, dataset: Dataset) -> Path:
    """The folder of one dataset as published."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", dataset.url).strip("-")[-40:]
    digest = hashlib.sha256(f"{dataset.url}\n{dataset.index_hash}".encode()).hexdigest()[:16]
    return root / f"{name}-{digest}"


class ShardCache:
    """The shards of a corpus, by number. One per process; threads may share it."""

    def __init__(self, corpus: Corpus, root: Path, retry: Retry, limit_bytes: int | None, threads: int) -> None:
        self._corpus, self._root, self._retry, self._limit_bytes = corpus, root, retry, limit_bytes
        self._open: OrderedDict[int, tuple[Shard, float]] = OrderedDict()
        self._fetches: dict[int, Future[Path | None]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cloudload-fetch")
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = _MOST_OPEN_SHARDS if open_files == resource.RLIM_INFINITY else min(_MOST_OPEN_SHARDS, open_files // 2)

    def shard(self, number: int) -> Shard:
        """The mapped shard; waits for it to be fetched. Raises what kept it from being fetched."""
        if number in self._open:
            shard, touched = self._open[number]
            self._open.move_to_end(number)
            if time.monotonic() - touched > _TOUCH_EVERY_S:
                self._keep(number, shard)
            return shard
        dataset, info = self._info(number)
        for _ in range(3):
            fetch = self._fetches.pop(number, None)
            path = (fetch.result() if fetch else None) or self._fetch(number)
            assert path is not None
            # it may be evicted between the fetch and the map
            with contextlib.suppress(FileNotFoundError):
                shard = Shard(path, info)
                self._keep(number, shard)
                return shard
        if is_in_place(dataset, info):
            raise DatasetError(f"{path} is not there, though the index of {dataset.url} lists it. Convert or copy it again")
        raise CacheError(f"{path} is evicted as soon as it is fetched. Raise cache_limit: the shards in use do not fit")

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Fetch shards in the background, in this order; an error waits until the shard is asked for."""
        for number in numbers:
            if number not in self._open and number not in self._fetches and not is_in_place(*self._info(number)):
                self._fetches[number] = self._pool.submit(self._fetch, number, waits=False)

    def close(self) -> None:
        """Stop fetching and let go of every shard."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._open.clear()
        self._fetches.clear()

    def _info(self, number: int) -> tuple[Dataset, ShardInfo]:
        owner, shard = self._corpus.shard_owners[number]
        dataset = self._corpus.datasets[owner]
        return dataset, dataset.shards[shard]

    def _keep(self, number: int, shard: Shard) -> None:
        if not is_in_place(*self._info(number)):
            with contextlib.suppress(OSError):  # evicted, or of another user
                os.utime(shard.path)
        self._open[number] = (shard, time.monotonic())
        self._open.move_to_end(number)
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)

    def _fetch(self, number: int, *, waits: bool = True) -> Path | None:
        """Fetch a shard, if it is not there. Who does not wait for another process that is at it gets None, to fetch others."""
        dataset, info = self._info(number)
        if is_in_place(dataset, info):
            return local_path(dataset.url) / info.raw.name
        path = dataset_folder(self._root, dataset) / info.raw.name
        if _is_whole(path, info):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked if waits else locked_if_free
        with lock(_lock_of(path)) as is_held:
            if not is_held:
                return None
            if not _is_whole(path, info):
                self._fetch_locked(dataset, info, path)
        return path

    def _fetch_locked(self, dataset: Dataset, info: ShardInfo, path: Path) -> None:
        path.unlink(missing_ok=True)
        for left_over in path.parent.glob(f"{path.name}.*{_PART_SUFFIX}"):
            left_over.unlink(missing_ok=True)
        try:
            with self._reserved(path, info.raw.bytes) as (part, file):
                for attempt in (1, 2):
                    fault = _download(join_url(dataset.url, info.stored.name), info, file, self._retry)
                    if fault is None:
                        file.flush()
                        os.fsync(file.fileno())  # reserved bytes that were never written would pass for a whole shard
                        part.replace(path)
                        return
                    if attempt == 1:
                        logger.warning("%s %s; fetched again", join_url(dataset.url, info.stored.name), fault)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CacheError(
                    f"no space left in {self._root} for {info.raw.name} ({info.raw.bytes:,} bytes). "
                    "Free some, choose another `local`, or set cache_limit"
                ) from error
            raise
        raise DatasetError(f"{join_url(dataset.url, info.stored.name)} {fault}, twice. Upload the shard again")

    @contextlib.contextmanager
    def _reserved(self, path: Path, size: int) -> Iterator[tuple[Path, BinaryIO]]:
        """A file beside `path` that holds `size` bytes of disk; gone afterwards unless it was renamed."""
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{_PART_SUFFIX}")
        try:
            with locked(self._root / "space.lock"):
                if self._limit_bytes is not None:
                    self._make_room(size, self._limit_bytes)
                file = part.open("w+b")
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
            with file:
                yield part, file
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int, limit: int) -> None:
        parts, shards = _sweep(self._root)
        used = sum(stat.st_size for _, stat in parts + shards)
        for path, stat in sorted(shards, key=lambda item: item[1].st_mtime):
            if used + size <= limit:
                return
            path.unlink(missing_ok=True)
            used -= stat.st_size
        if used + size > limit:
            raise CacheError(
                f"cache_limit {limit:,} is too small for {self._root}: {used:,} bytes are being fetched "
                f"and {size:,} more are needed. Raise it to {used + size:,} or more"
            )


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _is_whole(path: Path, info: ShardInfo) -> bool:
    try:
        return path.stat().st_size == info.raw.bytes
    except FileNotFoundError:
        return False


Files = list[tuple[Path, os.stat_result]]


def _sweep(root: Path) -> tuple[Files, Files]:
    """The parts being fetched and the shards of the cache, less what killed processes left; what is not ours is not looked at."""
    parts: Files = []
    shards: Files = []
    folders = [folder for folder in root.iterdir() if _DATASET_FOLDER.fullmatch(folder.name)]
    for path in itertools.chain.from_iterable(folder.rglob("*") for folder in folders):
        with contextlib.suppress(FileNotFoundError):
            if path.name.endswith(_PART_SUFFIX):
                shard = path.with_name(path.name.rsplit(".", 2)[0])
                with locked_if_free(_lock_of(shard)) as is_left_over:
                    if is_left_over:
                        path.unlink()
                    else:
                        parts.append((path, path.stat()))
            elif path.suffix != ".lock" and path.is_file():
                shards.append((path, path.stat()))
    return parts, shards


def _download(url: str, info: ShardInfo, file: BinaryIO, retry: Retry) -> str | None:
    """Fetch a shard into `file` as raw bytes; returns what is wrong with it, or None."""
    file.seek(0)
    if info.zipped is None or info.compression is None:
        download_object(url, file, retry, info.raw.bytes)
        return _fault_of_file(file, info.raw)
    zipped = io.BytesIO()
    download_object(url, zipped, retry, info.zipped.bytes)
    if fault := _fault_of_file(zipped, info.zipped):
        return fault
    try:
        raw = decompress(info.compression, zipped.getvalue(), info.raw.bytes)
    except Exception as error:
        return f"cannot be decompressed ({error})"
    file.seek(0)
    file.write(raw)
    file.truncate()
    return _fault_of_file(file, info.raw) if fastest_hash(info.zipped.hashes) is None else _fault_of_size(len(raw), info.raw)


def _fault_of_size(size: int, expected: FileInfo) -> str | None:
    return None if size == expected.bytes else f"has {size:,} bytes where the index has {expected.bytes:,}"


def _fault_of_file(file: BinaryIO, expected: FileInfo) -> str | None:
    """What is wrong with a file's size or hash, or None."""
    if fault := _fault_of_size(file.seek(0, os.SEEK_END), expected):
        return fault
    algorithm = fastest_hash(expected.hashes)
    if algorithm is None:
        return None
    hasher = Hasher(algorithm)
    file.seek(0)
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    if hasher.hexdigest() == expected.hashes[algorithm]:
        return None
    return f"has {algorithm} {hasher.hexdigest()} where the index has {expected.hashes[algorithm]}"
