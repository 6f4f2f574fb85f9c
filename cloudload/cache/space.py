"""The disk space of a cache: bytes are reserved before a download, and old shards are evicted.

    reserve ─► used + size ≤ limit? ─ yes ───────────────────────────► partial file
                 │ no
               evict the next of the queue, unless it was used again ─► partial file
                 │ the queue is empty
               list all files: their bytes, and a new queue

    root/space.json     used bytes, the downloads in progress, and the place in the queue
    root/space.queue    all shards, the least recently used first, as of the last listing

A shard that is not in the queue, or was used since, was used later than all that are. So the queue
evicts the same shards as a listing before each download would, and a node with 10⁵ shards in its
cache lists them once in 10⁵ downloads. Both files are read and written under `root/space.lock`, and
a process without a limit, or one that starts, removes the first, so that the next one lists anew.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from cloudload.cache.folder import SPACE, shard_files
from cloudload.errors import CacheError
from cloudload.system.file_locks import locked, remove_if_orphaned
from cloudload.system.temp_files import (
    PART_SUFFIX,
    is_temporary,
    lock_path,
    partial_file,
    target_of,
)

_MOST_PENDING = 256


@dataclass
class _Space:
    """The use of a cache, as of the last reservation."""

    used: int
    """Bytes of all shards and partial files, or more if some were removed by others."""
    pending: dict[str, int]
    """The reserved bytes of each partial file, by path in the cache, that may be in progress."""
    place: int
    """The byte of the queue at which its next shard is."""


@contextlib.contextmanager
def reserve(
    root: Path, path: Path, size: int, limit_bytes: int | None
) -> Iterator[tuple[Path, BinaryIO]]:
    """Reserve `size` bytes in a partial file beside `path`; yield its path and the open file.

    The file is removed at the end unless the caller renamed it. Shards are evicted to stay within
    `limit_bytes` (None for no limit). Raises `CacheError` if evicting all of them is not enough,
    and `OSError` if the disk is full or the file cannot be created.
    """
    with partial_file(path) as part:
        with locked(lock_path(root / "space")):
            if limit_bytes is None:
                _path(root).unlink(missing_ok=True)
            else:
                space = _make_room(root, size, limit_bytes)
                space.used += size
                space.pending[_name(root, part)] = size
                _save(root, space)
            file = part.open("w+b")
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
        with file:
            yield part, file


def _make_room(root: Path, size: int, limit_bytes: int) -> _Space:
    """Evict the least recently used shards until `size` more bytes fit, or raise `CacheError`."""
    space = _load(root)
    is_listed = space is None
    if space is None:
        space = _list_all(root)
    if space.used + size > limit_bytes or len(space.pending) > _MOST_PENDING:
        _settle(root, space)
    while space.used + size > limit_bytes:
        if _evict(root, space, size, limit_bytes):
            continue
        if is_listed:
            raise CacheError(
                f"cache_limit {limit_bytes:,} is too small for {root}, because {space.used:,} "
                f"bytes are being fetched and {size:,} more are needed. Raise it to "
                f"{space.used + size:,} or more"
            )
        space, is_listed = _list_all(root), True
    return space


def _evict(root: Path, space: _Space, size: int, limit_bytes: int) -> bool:
    """Evict shards of the queue until `size` more bytes fit; False if the queue ends before."""
    with _queue(root).open("rb") as queue:
        queue.seek(space.place)
        while space.used + size > limit_bytes:
            if not (line := queue.readline()):
                return False
            space.place = queue.tell()
            used_ns, own_bytes, name = json.loads(line)
            path = root / name
            found = _stat(path)
            if found is None:
                space.used -= own_bytes
            elif (found.st_atime_ns, found.st_size) == (used_ns, own_bytes):
                path.unlink(missing_ok=True)
                space.used -= own_bytes
    return True


def _settle(root: Path, space: _Space) -> None:
    """Forget the partial files that became shards, and free the bytes of those that are gone."""
    for name, size in list(space.pending.items()):
        part = root / name
        if part.exists() and not remove_if_orphaned(part):
            continue
        del space.pending[name]
        found = _stat(target_of(part))
        if found is None or found.st_size != size:
            space.used -= size


def _list_all(root: Path) -> _Space:
    """List all files of a cache, and write its queue."""
    files = [(path, found) for path in shard_files(root) if (found := _stat(path))]
    pending = {
        _name(root, path): found.st_size
        for path, found in files
        if path.suffix == PART_SUFFIX and not remove_if_orphaned(path)
    }
    shards = sorted(
        (found.st_atime_ns, found.st_size, _name(root, path))
        for path, found in files
        if not is_temporary(path)
    )
    _write_queue(root, shards)
    used = sum(size for _, size, _ in shards) + sum(pending.values())
    return _Space(used, pending, 0)


def _write_queue(root: Path, shards: list[tuple[int, int, str]]) -> None:
    """Write the queue. If the disk is full, evict the least recently used shard first."""
    try:
        _queue(root).write_text("".join(f"{json.dumps(each)}\n" for each in shards))
    except OSError as error:
        if error.errno != errno.ENOSPC or not shards:
            raise
        _, _, oldest = shards.pop(0)
        (root / oldest).unlink(missing_ok=True)
        _queue(root).write_text("".join(f"{json.dumps(each)}\n" for each in shards))


def _load(root: Path) -> _Space | None:
    """The use of a cache; None if it is unknown."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        space = _Space(**json.loads(_path(root).read_text()))
        if _queue(root).exists():
            return space
    return None


def _save(root: Path, space: _Space) -> None:
    _path(root).write_text(json.dumps(asdict(space)))


def _name(root: Path, path: Path) -> str:
    """The path of a file within the cache, which other processes may see at another place."""
    return str(path.relative_to(root))


def _path(root: Path) -> Path:
    return root / SPACE


def _queue(root: Path) -> Path:
    return root / "space.queue"


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None
