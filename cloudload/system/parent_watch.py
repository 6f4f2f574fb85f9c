"""The end of a process that serves another: when it is told to, and when the other is gone.

    trainer   ──────────► SIGKILL
    worker    ─────────────────── at most a second ──► removes its left-overs, and exits

A worker that waits for the store, or for nothing at all, ends like one that works. Ctrl-C reaches
the whole family, and is for its head to answer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import Any

from cloudload.system.temp_files import leave

_LOOK_EVERY_S = 1.0

TOLD_TO_END = 128 + signal.SIGTERM
"""The status of a process that ended on SIGTERM, as shells have it."""


def tie_to_parent() -> None:
    """From here on, this process ends on SIGTERM, and soon after its parent; called in its main
    thread."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, name="cloudload-lifeline", daemon=True).start()


def open_trainer() -> int | None:
    """A descriptor that tells when the training process has ended, whose worker this one may be;
    None where there is none."""
    trainer = multiprocessing.parent_process()
    try:
        return os.pidfd_open(os.getpid() if trainer is None or trainer.pid is None else trainer.pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        return None


def tie_to_trainer(descriptor: int) -> None:
    """From here on, this process ends soon after the one that `open_trainer` found."""
    threading.Thread(
        target=_await, args=(descriptor,), name="cloudload-lifeline", daemon=True
    ).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    # a fork server's children have a pipe that ends with the trainer; of a forked child's, siblings
    # may hold the other end
    is_child = os.getppid() == parent.pid
    while not wait([parent.sentinel], timeout=_LOOK_EVERY_S):
        if is_child and os.getppid() != parent.pid:
            break
    _leave()


def _await(descriptor: int) -> None:
    wait([descriptor])
    _leave()


def _leave(number: int = 0, _: Any = None) -> None:
    leave()
    # without the interpreter's own end, which waits for threads that wait for the store
    os._exit(TOLD_TO_END if number else 0)
