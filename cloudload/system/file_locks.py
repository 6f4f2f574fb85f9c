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
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from weakref import WeakKeyDictionary

from cloudload.system import temp_files
from cloudload.system.activity import Text, doing

_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
_LOOK_EVERY_S = 0.05


class OwnLockError(RuntimeError):
    """A signal handler needs a lock that the call which it interrupted holds or waits for."""


class _Here(threading.local):
    """The lock files that this thread has opened, each with its process, device, and inode."""

    def __init__(self) -> None:
        self.files = WeakKeyDictionary[FileIO, tuple[int, int, int]]()

    def add(self, file: FileIO) -> None:
        found = os.fstat(file.fileno())
        self.files[file] = os.getpid(), found.st_dev, found.st_ino

    def has_other(self, file: FileIO) -> bool:
        """Whether this thread also has the same file open as another object."""
        known = list(self.files.items())
        own = self.files[file]
        return any(each is not file and not each.closed and at == own for each, at in known)


_here = _Here()


class HeldLock:
    """A lock that this process holds until `release`, or until the object is garbage-collected.

    The file object then closes the descriptor, so an exception at any point, such as Ctrl-C, leaves
    no lock held once its traceback is gone. There is no `__del__`, because Python would ignore a
    Ctrl-C in it.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path, self._file, self._process = path, file, os.getpid()
        temp_files.register(path, file.fileno())

    @classmethod
    def inherit(cls, path: Path, descriptor: int) -> HeldLock:
        """Take over a lock from the process that started this one."""
        return cls(path, FileIO(descriptor, "r+"))

    def fileno(self) -> int:
        """The descriptor that holds the lock. Every process that inherits it holds the lock too."""
        return self._file.fileno()

    def release(self) -> None:
        """Delete the lock's file, and unlock it, also for forked processes that inherited it."""
        try:
            if not self._file.closed and self._process == os.getpid():
                temp_files.unregister(self._path)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
                _unlock(self._file)
        finally:
            self._file.close()  # without unlocking, if another process owns the lock

    def hand_over(self) -> None:
        """Leave the lock to a process that inherited the descriptor."""
        temp_files.unregister(self._path)
        self._file.close()


class NoLocksError(OSError):
    """The file system does not support `flock`, or its locks exclude nobody."""


def check_locks(folder: Path) -> None:
    """Raise `NoLocksError` unless a lock of a file in a folder excludes other processes.

    This does not detect locks that exclude only processes of the same node. Raises `OSError` if no
    file can be created.
    """
    path = temp_files.lock_path(folder / "check")
    try:
        with locked(path), FileIO(os.open(path, os.O_RDWR | os.O_CLOEXEC), "r+") as other:
            if _lock_at_once(other):
                raise NoLocksError("its file system grants one file lock to several holders")
    except NoLocksError:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(
    path: Path,
    *,
    wait: bool = True,
    what: Text = "",
    most_wait_s: float = math.inf,
    is_reentrant: bool = False,
) -> Iterator[bool]:
    """Lock the file `path` against all other threads and processes on this node.

    Yields True once this thread has the lock. While another thread or process holds the lock, waits
    at most `most_wait_s` seconds, or not at all if `wait` is False, and then yields False. `what`
    is the work that the other process does while it holds the lock. Messages about a wait begin
    with "waiting for another process of this node to", and `what` completes that sentence.

    A signal handler may need a lock that the call which it interrupted holds. Then `is_reentrant`
    yields True, which suits work that may be done twice. Otherwise, raises `OwnLockError`. Raises
    `OSError` if the file cannot be created or locked.
    """
    lock, is_own = None, False
    try:
        try:
            lock = acquire(path, wait=wait, what=what, most_wait_s=most_wait_s)
        except OwnLockError:
            if not is_reentrant:
                raise
            is_own = True
        yield is_own or lock is not None
    finally:
        if lock is not None:
            lock.release()


def acquire(
    path: Path, *, wait: bool, what: Text = "", most_wait_s: float = math.inf
) -> HeldLock | None:
    """Lock the file `path`.

    Returns None if another thread or process holds the lock, immediately if `wait` is False, and
    after `most_wait_s` seconds otherwise. `what` is as in `locked`. Raises `OwnLockError` if this
    thread would wait for itself, and `OSError` if the file cannot be created or locked.
    """
    deadline_s = time.monotonic() + most_wait_s

    def describe() -> str:
        work = what if isinstance(what, str) else what()
        return f"waiting for another process on this node to {work or f'unlock {path}'}"

    while True:
        found = temp_files.create(lambda: _try_to_lock(path))
        if isinstance(found, HeldLock):
            return found
        try:
            if not _lock_at_once(found):
                if not wait:
                    return None
                if _here.has_other(found):
                    raise OwnLockError(
                        f"a signal handler cannot wait for {path}, because the call that it "
                        "interrupted uses this lock. Set a flag in the handler, and do the work "
                        "after the call"
                    )
                with doing(describe):  # until the holder unlocks the file
                    wait = _wait_for(found, deadline_s)
        finally:
            _unlock(found)


def _try_to_lock(path: Path) -> HeldLock | FileIO:
    """Open and lock a file. If another thread or process holds or deleted it, return it open."""
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+")
    try:
        _here.add(file)
        # the previous holder may have deleted the file between our open and our lock
        is_held = _lock_at_once(file) and _is_same_file(path, file)
        return HeldLock(path, file) if is_held else file
    except BaseException:
        _unlock(file)
        raise


def _lock_at_once(file: FileIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _flock(file: FileIO, operation: int) -> None:
    """Call `flock`. Raises `NoLocksError` if the file system does not support it."""
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise NoLocksError(f"its file system does not support file locks ({error})") from error
        raise


def _wait_for(file: FileIO, deadline_s: float) -> bool:
    """Wait for a lock until `time.monotonic()` is `deadline_s`. Return whether it was acquired."""
    if deadline_s == math.inf:
        _flock(file, fcntl.LOCK_EX)
        return True
    while time.monotonic() < deadline_s:
        if _lock_at_once(file):
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def remove_if_orphaned(path: Path) -> bool:
    """Remove a partial file or a lock file unless its lock is held. Return whether it is gone."""
    lock = temp_files.lock_path(temp_files.target_of(path))
    with contextlib.suppress(OSError), locked(lock, wait=False) as is_free:
        if is_free and path.suffix == temp_files.PART_SUFFIX:
            path.unlink(missing_ok=True)
        return is_free
    return False  # the lock cannot be opened, for example in another user's folder


def remove_orphans(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the partial files and locks that killed processes left in a folder, if it exists.

    Removes only files whose names begin with a match of `names`.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if temp_files.is_temporary(name) and names.match(name):
                remove_if_orphaned(folder / name)


def _unlock(file: FileIO) -> None:
    """Unlock a file, also for forked processes that inherited it, and close it."""
    try:
        if not file.closed:
            with contextlib.suppress(NoLocksError):
                _flock(file, fcntl.LOCK_UN)
    finally:
        file.close()


def _is_same_file(path: Path, file: FileIO) -> bool:
    try:
        return os.lstat(path).st_ino == os.fstat(file.fileno()).st_ino
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # NFS raises ESTALE
            raise
        return False
