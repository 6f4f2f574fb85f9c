"""`flock` locks, which the kernel releases when their holder dies.

The holder deletes the lock file when it releases the lock. The lock file of a killed holder
remains, but is unlocked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from cloudload.system.activity import Text, doing
from cloudload.system.temp_files import (
    PART_SUFFIX,
    creation,
    is_temporary,
    lock_path,
    register,
    target_of,
    unregister,
)

_LOOK_EVERY_S = 0.05


@contextlib.contextmanager
def locked(
    path: Path, *, wait: bool = True, what: Text = "", most_wait_s: float = math.inf
) -> Iterator[bool]:
    """Lock the file `path` against all other threads and processes on this node.

    Yields True once this thread has the lock. While another thread or process holds the lock, waits
    at most `most_wait_s` seconds, or not at all if `wait` is False, and then yields False. `what`
    is the work that the other process does while it holds the lock. Messages about a wait begin
    with "waiting for another process of this node to", and `what` completes that sentence. Raises
    `OSError` if the file cannot be created or locked.
    """
    descriptor = acquire(path, wait=wait, what=what, most_wait_s=most_wait_s)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            release(path, descriptor)


def acquire(
    path: Path, *, wait: bool, what: Text = "", most_wait_s: float = math.inf
) -> int | None:
    """Lock the file `path`, and return a descriptor that holds the lock until it is closed.

    If processes inherit the descriptor, all of them must close it. Returns None if another thread
    or process holds the lock, immediately if `wait` is False, and after `most_wait_s` seconds
    otherwise. `what` is as in `locked`. Raises `OSError` if the file cannot be created or locked.
    """
    deadline_s = time.monotonic() + most_wait_s

    def describe() -> str:
        work = what if isinstance(what, str) else what()
        return f"waiting for another process on this node to {work or f'unlock {path}'}"

    while True:
        with creation():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
                # the previous holder may have deleted the file between our open and our lock
                if _is_same_file(path, descriptor):
                    register(path, descriptor)
                    return descriptor
            except BlockingIOError:
                is_free = False
            except BaseException:
                os.close(descriptor)
                raise
        try:
            if wait and not is_free:
                with doing(describe):  # until the holder unlocks the file
                    wait = _wait_for(descriptor, deadline_s)
        finally:
            os.close(descriptor)
        if not wait and not is_free:
            return None


def _wait_for(descriptor: int, deadline_s: float) -> bool:
    """Wait for a lock until `time.monotonic()` is `deadline_s`. Return whether it was acquired."""
    if deadline_s == math.inf:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    while time.monotonic() < deadline_s:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def release(path: Path, descriptor: int) -> None:
    """Delete a lock's file, and close the descriptor that holds the lock."""
    unregister(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have inherited the descriptor
    os.close(descriptor)


def remove_if_orphaned(path: Path) -> bool:
    """Remove a partial file or a lock file unless its lock is held. Return whether it is gone."""
    lock = lock_path(target_of(path))
    with contextlib.suppress(OSError), locked(lock, wait=False) as is_free:
        if is_free and path.suffix == PART_SUFFIX:
            path.unlink(missing_ok=True)
        return is_free
    return False  # the lock cannot be opened, for example in another user's folder


def remove_orphans(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the partial files and locks that killed processes left in a folder, if it exists.

    Removes only files whose names begin with a match of `names`.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if is_temporary(name) and names.match(name):
                remove_if_orphaned(folder / name)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # NFS raises ESTALE
            raise
        return False
