"""Exit on SIGTERM, and soon after the parent or the training process ends.

    trainer   ──────────► SIGKILL
    worker    ─────────── within about a second ──► removes its temporary files, and exits

A thread watches the parent, so a blocked worker exits as promptly as a busy one. Ctrl-C reaches the
whole process group. Workers ignore it, because the training process handles it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import Any

from cloudload.system import temp_files

_CHECK_EVERY_S = 1.0

SIGTERM_STATUS = 128 + signal.SIGTERM
"""The exit status of a process that exited on SIGTERM, by shell convention."""


def exit_with_parent() -> None:
    """Make this process exit on SIGTERM, and within about a second after its parent ends.

    The process ignores Ctrl-C. Call this in the main thread of a `multiprocessing` child.
    """
    own, (requests, request) = os.getpid(), os.pipe()

    def end(*_: Any) -> None:
        # do not exit in this thread, because it may have created a lock file but not registered it
        if os.getpid() == own:
            os.write(request, b"\0")
        else:
            _exit(SIGTERM_STATUS)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_watch_parent, args=(requests,), name="cloudload-parent-watch", daemon=True
    ).start()


def open_trainer_pidfd() -> int | None:
    """Return a descriptor that becomes readable when the training process ends.

    In a worker, the training process is the parent. Otherwise, it is this process. Returns None if
    no descriptor can be opened, for example because the training process has already ended, or
    because the kernel or Python does not support pidfds.
    """
    trainer = multiprocessing.parent_process()
    try:
        return os.pidfd_open(os.getpid() if trainer is None or trainer.pid is None else trainer.pid)
    except (AttributeError, OSError):
        return None


def exit_with_trainer(pidfd: int) -> None:
    """Make this process exit when the training process ends.

    `pidfd` is from `open_trainer_pidfd`.
    """
    threading.Thread(
        target=_watch_trainer, args=(pidfd,), name="cloudload-parent-watch", daemon=True
    ).start()


def _watch_parent(requests: int) -> None:
    """Exit when the parent ends, or when the pipe `requests` becomes readable."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # the sentinel is a pipe that closes when the parent ends, but siblings of a forked child may
    # keep its other end open, so check the parent's process ID as well
    is_child = os.getppid() == parent.pid
    while not (ready := wait([parent.sentinel, requests], timeout=_CHECK_EVERY_S)):
        if is_child and os.getppid() != parent.pid:
            break
    _exit(SIGTERM_STATUS if requests in ready else 0)


def _watch_trainer(pidfd: int) -> None:
    wait([pidfd])
    _exit()


def _exit(status: int = 0) -> None:
    temp_files.remove_all_and_stop()
    # sys.exit would end only this thread, or wait for threads that are blocked on a store
    os._exit(status)
