"""Files that are of no use without the process that made them: its locks, and what it has written
in part.

    shard.00000.mds                         a file that many want
    shard.00000.mds.lock                    there while one of them is at it
    shard.00000.mds.3f2a….part              what that one has of it so far

A process that ends in a hurry removes its own. What one leaves that is killed without a word, the
next finds by its name.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

LOCK_SUFFIX, PART_SUFFIX = ".lock", ".part"

TAG = "CACHEDIR.TAG"
"""In each folder that is cloudload's own: there, and nowhere else, left-overs are looked for
(https://bford.info/cachedir)."""

_PART = re.compile(rf".+\.[0-9a-f]{{12}}\{PART_SUFFIX}")

_SETTLE_S = 0.1

_noted: dict[Path, int | None] = {}

# the processes that are about to end: this one, or none
_leaving: set[int] = set()

# a child has made nothing of what its parent has in hand
os.register_at_fork(after_in_child=_noted.clear)


def make_folder(folder: Path) -> None:
    """Make a folder that is cloudload's own."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / TAG).exists():
        (folder / TAG).write_text(
            "Signature: 8a477f597d28d172789f06886806bc55\n# made by cloudload\n"
        )


def lock_of(path: Path) -> Path:
    """The lock of whoever makes a file."""
    return path.with_name(path.name + LOCK_SUFFIX)


def is_left_over(path: Path) -> bool:
    """Whether a file is a lock or a part by its name."""
    return len(path.name) > len(LOCK_SUFFIX) and (
        path.name.endswith(LOCK_SUFFIX) or _PART.fullmatch(path.name) is not None
    )


def file_of(left_over: Path) -> Path:
    """The file that a lock or a part belongs to."""
    pieces = 2 if left_over.suffix == PART_SUFFIX else 1
    return left_over.with_name(left_over.name.rsplit(".", pieces)[0])


@contextlib.contextmanager
def part_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write it under; what is there at the end, if it was not renamed, is
    removed."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}")
    note(part)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
        forget(part)


def note(path: Path, descriptor: int | None = None) -> None:
    """This process makes a file that nobody else has a use for; of a lock, with what it holds it
    by.

    In a process that is about to end, this does not return.
    """
    _noted[path] = descriptor
    while os.getpid() in _leaving and threading.current_thread().daemon:
        time.sleep(_SETTLE_S)


def forget(path: Path) -> None:
    """It is gone, or of use to others."""
    _noted.pop(path, None)


@atexit.register
def remove_left_overs() -> None:
    """Remove all that is noted."""
    for path, descriptor in list(_noted.items()):
        with contextlib.suppress(OSError):
            # a lock that was let go of meanwhile may be another's by now
            if descriptor is None or os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                path.unlink()


def leave() -> None:
    """As `remove_left_overs`, in a process that ends right after: its threads begin nothing
    more."""
    _leaving.add(os.getpid())
    for _ in range(2):
        remove_left_overs()
        time.sleep(_SETTLE_S)  # threads that were about to make a file have noted it by then
