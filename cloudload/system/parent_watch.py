"""Exit on SIGTERM, and soon after the parent or the training process ends.

    trainer   ──────────► SIGKILL
    worker    ─────────────────── about a second ──► removes its temporary files, and exits

A blocked worker exits as promptly as a busy one. Ctrl-C reaches the whole process group; workers
ignore it and leave the response to the training process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import Any

from cloudload.system.temp_files import remove_all_and_stop

_CHECK_EVERY_S = 1.0

SIGTERM_STATUS = 128 + signal.SIGTERM
"""The exit status of a process that exited on SIGTERM, by the shells' convention."""


def exit_with_parent() -> None:
    """Exit on SIGTERM, and about a second after the parent ends. Call it in the main thread."""
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch_parent, name="cloudload-parent-watch", daemon=True).start()


def open_trainer_pidfd() -> int | None:
    """Return a descriptor that becomes readable when the training process ends.

    The training process is a worker's parent, or else this process. Returns None if the kernel or
    Python does not support pidfds.
    """
    trainer = multiprocessing.parent_process()
    try:
        return os.pidfd_open(os.getpid() if trainer is None or trainer.pid is None else trainer.pid)
    except (AttributeError, OSError):
        return None


def exit_with_trainer(pidfd: int) -> None:
    """Exit soon after the training process ends; `pidfd` is from `open_trainer_pidfd`."""
    threading.Thread(
        target=_watch_trainer, args=(pidfd,), name="cloudload-parent-watch", daemon=True
    ).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    # a child of a fork server has a pipe that closes when the trainer ends; the other end of a
    # forked child's pipe may be open in its siblings, so its parent's process ID is checked as well
    is_child = os.getppid() == parent.pid
    while not wait([parent.sentinel], timeout=_CHECK_EVERY_S):
        if is_child and os.getppid() != parent.pid:
            break
    _exit()


def _watch_trainer(pidfd: int) -> None:
    wait([pidfd])
    _exit()


def _exit(signal_number: int = 0, _: Any = None) -> None:
    remove_all_and_stop()
    # a normal exit of the interpreter would wait for threads that are blocked on a store
    os._exit(SIGTERM_STATUS if signal_number else 0)
