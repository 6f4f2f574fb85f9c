"""Temporary files: locks and partially written files.

    shard.00000.mds                         a file that several processes need
    shard.00000.mds.lock                    held while one of them writes the file
    shard.00000.mds.3f2a….part              the bytes written so far

A process removes its temporary files when it exits. Worker processes do so even on SIGTERM. A
killed process leaves them behind. A later process recognizes the temporary files of shards and
orders by their names, and removes them.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

T = TypeVar("T")

LOCK_SUFFIX, PART_SUFFIX = ".lock", ".part"

TAG = "CACHEDIR.TAG"
"""The name of the file that marks the cache's folders (https://bford.info/cachedir).

Eviction, and the cleanup of shards and orders, ignore files outside marked folders.
"""

_PARTIAL_NAME = re.compile(rf".+\.[0-9a-f]{{12}}\{PART_SUFFIX}")

_SETTLE_S, _MOST_CREATION_S = 0.1, 5.0

# the files to remove at exit, and for each lock file, the descriptor that holds the lock
_registered: dict[Path, int | None] = {}

# once this process is exiting: its process ID, and the thread that makes it exit
_exiting: dict[int, threading.Thread] = {}

# contains this process's ID once it has a `multiprocessing` finalizer, which a forked child needs
# because it may skip `atexit` functions
_finalizing: set[int] = set()

# held from the creation of a file to its registration; reentrant, because a signal handler may run
# in the thread that already holds it
_creation = threading.RLock()


class ProcessEndsError(RuntimeError):
    """A thread was about to create a temporary file in a process that is exiting."""


def _reset_after_fork() -> None:
    """Forget the parent's temporary files, and replace the lock, which its threads may hold."""
    global _creation  # noqa: PLW0603
    _registered.clear()
    _creation = threading.RLock()


os.register_at_fork(after_in_child=_reset_after_fork)


def make_folder(folder: Path) -> None:
    """Create a folder and its `CACHEDIR.TAG`, which marks the folder as cloudload's."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / TAG).exists():
        (folder / TAG).write_text(
            "Signature: 8a477f597d28d172789f06886806bc55\n# made by cloudload\n"
        )


def lock_path(path: Path) -> Path:
    """The path of the lock file that a process locks before it writes `path`."""
    return path.with_name(path.name + LOCK_SUFFIX)


@contextlib.contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, for the caller to write and rename.

    The file is removed at the end unless the caller renamed it.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}")
    create(lambda: register(part))
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
        unregister(part)


@contextlib.contextmanager
def scratch_file() -> Iterator[BinaryIO]:
    """Yield a new file in the system's folder for temporary files. Its `name` is its path."""

    def make() -> BinaryIO:
        file = cast("BinaryIO", tempfile.NamedTemporaryFile())
        register(Path(file.name))
        return file

    with create(make) as file, explained_full_disk():
        try:
            yield file
        finally:
            unregister(Path(file.name))


@contextlib.contextmanager
def explained_full_disk() -> Iterator[None]:
    """Name the system's folder for temporary files if a write in this block finds it full."""
    try:
        yield
    except OSError as error:
        # an error that names a file is about that file
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        folder = tempfile.gettempdir()
        full = OSError(
            f"no space left for temporary files in {folder}, which has "
            f"{shutil.disk_usage(folder).free:,} bytes free. Free some space, or set TMPDIR to a "
            "folder on another disk"
        )
        full.errno = error.errno
        raise full from error


def is_temporary(name: str) -> bool:
    """Whether the file of this name is a lock or a partial file."""
    return len(name) > len(LOCK_SUFFIX) and (
        name.endswith(LOCK_SUFFIX) or _PARTIAL_NAME.fullmatch(name) is not None
    )


def target_of(temporary: Path) -> Path:
    """The path of the file that a lock or a partial file belongs to."""
    pieces = 2 if temporary.suffix == PART_SUFFIX else 1
    return temporary.with_name(temporary.name.rsplit(".", pieces)[0])


def create(make: Callable[[], T]) -> T:
    """Return `make()`, which creates and registers a temporary file that is removed at exit.

    If a daemon thread is making the process exit, this blocks all other threads until the process
    ends. If a non-daemon thread is making it exit, this raises `ProcessEndsError` in daemon
    threads. It does not block them, because a later `atexit` function may wait for them.
    """
    with _creation:
        ending, own = _exiting.get(os.getpid()), threading.current_thread()
        if ending is None or own is ending or not (own.daemon or ending.daemon):
            return make()
    while ending.daemon:
        time.sleep(_SETTLE_S)
    raise ProcessEndsError(
        "a thread cannot create a temporary file, because this process is exiting. Finish reading "
        "before the process exits, and do not read in an atexit function"
    )


def register(path: Path, descriptor: int | None = None) -> None:
    """Register `path` for removal at exit. For a lock, pass the descriptor that holds it."""
    if os.getpid() not in _finalizing:
        _finalizing.add(os.getpid())
        Finalize(None, remove_all_and_stop, exitpriority=-1)
    _registered[path] = descriptor


def unregister(path: Path) -> None:
    """Cancel the removal of `path` at exit."""
    _registered.pop(path, None)


@atexit.register
def remove_all_and_stop() -> None:
    """Remove all registered files before this process exits.

    Locks that this process no longer holds are kept. From then on, `create` stops other threads.
    """
    is_first = os.getpid() not in _exiting
    _exiting[os.getpid()] = threading.current_thread()
    # wait only once, because a file system that does not respond would use up the timeout each time
    if is_first and _creation.acquire(timeout=_MOST_CREATION_S):
        _creation.release()  # every created file is registered now
    if _registered:
        _remove_all()
        if is_first:
            time.sleep(_SETTLE_S)  # a thread may be about to open a registered partial file
            _remove_all()


def _remove_all() -> None:
    for path, descriptor in list(_registered.items()):
        with contextlib.suppress(OSError):
            # another process may already hold this lock, in a new file with the same name
            if descriptor is None or os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                path.unlink()
