"""Mark a file as verified by its time of modification, and tell later whether it was modified.

    verified ──► mtime set to 2001-09-09 01:46:40 ──► any write sets another mtime

The mark is part of the file, so it can be neither lost nor left behind. A copy that does not keep
the mtime is verified again, and so is a file that was written to. Hashes alone detect what changes
without a write, such as bit rot.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

# whole, even seconds, which every file system keeps
_VERIFIED_MTIME_NS = 1_000_000_000 * 1_000_000_000


def mark_verified(path: Path) -> None:
    """Mark a file that was just verified; a file of another user stays unmarked."""
    with contextlib.suppress(PermissionError):
        os.utime(path, ns=(time.time_ns(), _VERIFIED_MTIME_NS))


def is_unmodified(found: os.stat_result) -> bool:
    """Whether a regular file was not written to since it was marked as verified."""
    return stat.S_ISREG(found.st_mode) and found.st_mtime_ns == _VERIFIED_MTIME_NS


def mark_used(path: Path) -> None:
    """Set a file's time of access, for LRU eviction; its mtime stays."""
    with contextlib.suppress(OSError):  # evicted, or of another user
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
