"""Mark a file as verified by setting its mtime, and later detect whether it was modified.

    verified ──► mtime set to 2001-09-09 01:46:40 UTC ──► any write changes the mtime

The mark is part of the file's metadata, so renaming the file keeps it. A file that was written to,
or copied without its mtime, is no longer marked. Only a file's owner and root can set the mark, so
the mark of another user's file says nothing. Only a hash detects a change without a write, such as
bit rot.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from cloudload.system import file_locks, temp_files

# an even number of seconds, because some file systems store mtimes in steps of two seconds
_VERIFIED_MTIME_NS = 1_000_000_000 * 1_000_000_000


def mark_verified(path: Path) -> None:
    """Mark a file as verified and used. Does nothing if another user owns the file."""
    with contextlib.suppress(PermissionError):
        os.utime(path, ns=(time.time_ns(), _VERIFIED_MTIME_NS))


def is_unmodified(found: os.stat_result) -> bool:
    """Whether `found` is from a regular file that was not written to since we or root marked it."""
    return is_marked(found) and found.st_uid in (0, os.geteuid())


def is_marked(found: os.stat_result) -> bool:
    """Whether `found` is from a regular file that was not written to since its owner marked it."""
    return stat.S_ISREG(found.st_mode) and found.st_mtime_ns == _VERIFIED_MTIME_NS


def has_unmodified(path: Path) -> bool:
    """Whether `path` is a regular file, not a link, that is unmodified (`is_unmodified`)."""
    try:
        return is_unmodified(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def build_once(path: Path, build: Callable[[], object], what: str = "") -> None:
    """Call `build`, which writes the file `path`, unless the file is there (`has_unmodified`).

    Holds the file's lock meanwhile, so of the processes of a node, one builds the file. `what` is
    as for `file_locks.locked`. Raises `OSError` if the folder or the lock cannot be created.
    """
    temp_files.make_folder(path.parent)
    if not has_unmodified(path):
        lock = temp_files.lock_path(path)
        with file_locks.locked(lock, what=what, is_reentrant=True):
            if not has_unmodified(path):
                build()


@contextlib.contextmanager
def open_verified(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write. After the block, it is on disk, marked as verified, and named `path`.

    If the block raises an exception, there is no such file.
    """
    with temp_files.partial_file(path) as part:
        with part.open("wb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mark_verified(part)
        part.replace(path)


def mark_used(path: Path) -> None:
    """Set a file's access time to now, for LRU eviction, and keep its mtime."""
    with contextlib.suppress(OSError):  # the file was evicted, or has another owner
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
