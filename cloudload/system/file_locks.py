"""A lock that the kernel frees when its holder dies: `flock` on a file that is there only while it
is held."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cloudload.system.temp_files import forget, note


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock named by `path`, among the threads and processes of this node; waits for it,
    and yields True."""
    descriptor = acquire(path, wait=True)
    assert descriptor is not None
    try:
        yield True
    finally:
        release(path, descriptor)


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """As `locked`, but yields False at once where somebody else holds the lock."""
    descriptor = acquire(path, wait=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            release(path, descriptor)


def acquire(path: Path, *, wait: bool) -> int | None:
    """The descriptor of a lock, held as long as any process has it open; None where another has it
    and `wait` is false."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # the last holder may have deleted the file between our open and our lock
            if _names(path, descriptor):
                note(path, descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # the latter of NFS
            raise
        return False


def release(path: Path, descriptor: int) -> None:
    """Let go of a lock."""
    forget(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.close(descriptor)
