"""Mark a file as verified by setting its mtime, and later tell whether it was modified.

    verified ──► mtime set to 2001-09-09 01:46:40 ──► any write sets another mtime

The mark is part of the file's metadata, so it is renamed and deleted with the file. A file that was
written to, or copied without its mtime, is verified again. Only a hash detects a change without a
write, such as bit rot.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

# an even number of seconds, because some file systems store mtimes in steps of two seconds
_VERIFIED_MTIME_NS = 1_000_000_000 * 1_000_000_000


def mark_verified(path: Path) -> None:
    """Mark a file as verified. A file owned by another user stays unmarked."""
    with contextlib.suppress(PermissionError):
        os.utime(path, ns=(time.time_ns(), _VERIFIED_MTIME_NS))


def is_unmodified(found: os.stat_result) -> bool:
    """Whether a regular file has not been written to since it was marked as verified."""
    return stat.S_ISREG(found.st_mode) and found.st_mtime_ns == _VERIFIED_MTIME_NS


def mark_used(path: Path) -> None:
    """Set a file's access time, for LRU eviction; its mtime does not change."""
    with contextlib.suppress(OSError):  # evicted, or owned by another user
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
