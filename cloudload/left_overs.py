"""Files that are of no use without the process that made them: its locks, and what it has written in part.

    shard.00000.mds                         a file that many want
    shard.00000.mds.lock                    there while one of them is at it
    shard.00000.mds.3f2a….part              what that one has of it so far

A process that ends in a hurry removes its own. What one leaves that is killed without a word, the next finds by its name.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

LOCK_SUFFIX, PART_SUFFIX = ".lock", ".part"

_SETTLE_S = 0.1

_noted: set[Path] = set()
# a child has made nothing of what its parent has in hand
os.register_at_fork(after_in_child=_noted.clear)
_is_leaving = threading.Event()


def lock_of(path: Path) -> Path:
    """The lock of whoever makes a file."""
    return path.with_name(path.name + LOCK_SUFFIX)


def file_of(left_over: Path) -> Path:
    """The file that a lock or a part belongs to."""
    pieces = 2 if left_over.suffix == PART_SUFFIX else 1
    return left_over.with_name(left_over.name.rsplit(".", pieces)[0])


@contextlib.contextmanager
def part_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write it under; what is there at the end, if it was not renamed, is removed."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}")
    note(part)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
        forget(part)


def note(path: Path) -> None:
    """This process makes a file that nobody else has a use for. In one that is about to end, this does not return."""
    _noted.add(path)
    while _is_leaving.is_set() and threading.current_thread().daemon:
        time.sleep(_SETTLE_S)


def forget(path: Path) -> None:
    """It is gone, or of use to others."""
    _noted.discard(path)


@atexit.register
def remove_left_overs() -> None:
    """Remove all that is noted, at the end of this process."""
    _is_leaving.set()
    for _ in range(2 if _noted else 1):
        for path in list(_noted):
            with contextlib.suppress(OSError):
                path.unlink()
        if _noted:
            time.sleep(_SETTLE_S)  # threads that were about to make a file have noted it by then
