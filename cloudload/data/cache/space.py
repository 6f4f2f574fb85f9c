"""The disk space of a cache: bytes are reserved before a download, and old shards are evicted.

    reserve ─► used + size ≤ limit? ─ yes ──────────────────────────────────► partial file
                 │ no
               evict this process's oldest candidate, unless it was used again ─► …
                 │ there are no more candidates
               list all files: the bytes used, and new candidates ─► …

Once a process has a limit, a file in `root`, the account, records how many bytes all shards and
partial files have. It is read and written under `root/space.lock`. A process that changes files
removes the account first, and writes it when it is done. So if the process is killed, the next
process lists all files.

Other users, older versions, and people may add or remove files without changing the account. To
find such changes, all files are listed when a loader starts, before a reservation fails, and ten
minutes after the last listing. If that took more than 6 s, the next listing is later, so that
listings take at most 1 % of the time.

A shard that no process has used since a listing is older than every shard that was used or added
since then. So processes evict the same shards as if they listed all files before each eviction.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cloudload.data.cache.folder import ACCOUNT, shard_files, space_lock
from cloudload.errors import CacheError
from cloudload.system.file_locks import locked, remove_if_orphaned
from cloudload.system.temp_files import PART_SUFFIX, is_temporary, partial_file

_LAYOUT = struct.Struct("<8sqdd")
_FORMAT = b"space 2\n"
_MOST_AGE_S, _MOST_AGE_IN_LISTINGS = 600.0, 100
_MOST_CANDIDATES = 10_000


@dataclass
class _Account:
    """The number of bytes that a cache uses (None if unknown), and when it was last listed."""

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


@contextlib.contextmanager
def reserve(
    root: Path, path: Path, size: int, limit_bytes: int | None
) -> Iterator[tuple[Path, BinaryIO]]:
    """Reserve `size` bytes in a partial file beside `path`; yield its path and the open file.

    The file is removed at the end unless the caller published it (`publish`). Shards are evicted to
    stay within `limit_bytes` (None for no limit). Raises `CacheError` if evicting all of them is
    not enough, and `OSError` if the disk is full or the file cannot be created.
    """
    with partial_file(path) as part, contextlib.ExitStack() as stack:
        with _changing(root) as account:
            if limit_bytes is not None:
                _make_room(root, account, size, limit_bytes)
            file = stack.enter_context(part.open("w+b"))
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            account.add(size)
        try:
            yield part, file
        finally:
            if part.exists():
                # if this fails, `partial_file` removes the file, but the account includes it until
                # the next listing of all files
                with contextlib.suppress(OSError), _changing(root) as account:
                    part.unlink(missing_ok=True)
                    account.add(-size)


def publish(root: Path, part: Path, path: Path) -> None:
    """Rename a partial file to the shard at `path`. A listing never counts both files."""
    with locked(space_lock(root)):
        part.replace(path)


def remove(root: Path, paths: list[Path]) -> None:
    """Remove invalid files from the cache, if they exist."""
    if found := [path for path in paths if os.path.lexists(path)]:
        with locked(space_lock(root)):
            _take(root)  # drop the account, which may not include files that others have added
            for path in found:
                path.unlink(missing_ok=True)


# ---------------------------------------------------------------- the account


@contextlib.contextmanager
def _changing(root: Path) -> Iterator[_Account]:
    """Lock and yield a cache's account, and write it at the end. An error leaves it unknown."""
    with locked(space_lock(root)):
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
    """Evict the oldest candidate unless it was used again. Returns False if there is none."""
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
            if is_temporary(path.name) and (path.suffix != PART_SUFFIX or remove_if_orphaned(path)):
                continue
            if found := _stat(path):
                used += found.st_size
                # NFS renames a file that is removed while mapped, so evicting it frees no space
                if not is_temporary(path.name) and not path.name.startswith(".nfs"):
                    yield _Candidate(found.st_atime_ns, found.st_size, path)

    _candidates[root] = deque(heapq.nsmallest(_MOST_CANDIDATES, find_shards()))
    return used


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None
