"""Which files of the cache are as they were when they were checked: their time of modification says
so.

    checked ──► sealed: modified at 2001-09-09 01:46:40        any write sets the clock's time, and so breaks the seal

Nothing lies beside a file that could be lost or outlive it. A copy that does not keep times is
checked again, and so is a file that anything wrote to. What changes without a write, on a disk that
forgets bits, is for hashes to find.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

# whole and even seconds, which every file system keeps
_SEAL_NS = 1_000_000_000 * 1_000_000_000


def seal(path: Path) -> None:
    """Say of a file that it was just found sound; one of another user stays unsealed."""
    with contextlib.suppress(PermissionError):
        os.utime(path, ns=(time.time_ns(), _SEAL_NS))


def is_sealed(found: os.stat_result) -> bool:
    """Whether a regular file was not written to since it was sealed."""
    return stat.S_ISREG(found.st_mode) and found.st_mtime_ns == _SEAL_NS


def touch(path: Path) -> None:
    """Say of a file that it was just used; its seal, or the lack of it, stays."""
    with contextlib.suppress(OSError):  # evicted, or of another user
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
