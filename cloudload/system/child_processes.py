"""Start child processes, feed them, and end them with the training process.

    spawn, forkserver ─► new interpreter ─► imports the main script ─► receives its work

Unless a child is forked, it first imports the program's main script. The script must therefore be a
file, and must not start processes when it is imported.

    trainer   ──────────► SIGKILL
    worker    ─────────── within about a second ──► removes its temporary files, and exits

A thread watches the parent, so a blocked worker exits as promptly as a busy one. Ctrl-C reaches the
whole process group. Workers ignore it, because the training process handles it.

A detached child has a low priority. It may outlive its worker, but not the training process:

    this process ── lock held, call in an unnamed file ──► new interpreter
                                                           own session, niced
                                                           calls, unlocks, exits

It is a new interpreter, not a fork, because this process may have threads and store clients. It is
not a `multiprocessing` child, because worker processes are daemonic and may not have children. The
child inherits the lock, so the kernel releases the lock if the child dies. A thread in this process
waits for the child, so that the child does not remain a zombie. The child's errors are not
reported, because a process that finds no result builds the result itself. If the kernel or Python
does not support pidfds, the child may also outlive the training process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from cloudload.system import file_locks, temp_files

logger = logging.getLogger("cloudload.system")

_NICENESS = 10

_CHILD_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from cloudload.system.child_processes import _child_main
_child_main(*sys.argv[2:])
"""

GUARD_ADVICE = (
    "A worker that is not forked first imports the program's main script, and that import may have "
    "failed (see stderr). In the script, put the code that starts the work under `if __name__ == "
    "'__main__':`"
)
"""The advice in an error about a worker that ended before it received its work."""

_CHECK_EVERY_S = 1.0

SIGTERM_STATUS = 128 + signal.SIGTERM
"""The exit status of a process that exited on SIGTERM, by shell convention."""


def run_detached(build: Callable[[], object], path: Path, what: str) -> bool:
    """Call `build`, which writes the file `path`, in a new process, and return immediately.

    The process holds the file's lock. `build` must have a pickle, and `what` names the result in
    the log. Returns False if the lock is already held, or if the folder, the lock or the process
    cannot be created, otherwise True.
    """
    held = None
    try:
        temp_files.make_folder(path.parent)
        lock = temp_files.lock_path(path).absolute()
        held = file_locks.acquire(lock, wait=False) if sys.executable else None
        if held is None:
            return False
        process = _spawn(build, lock, held)
    except OSError as error:
        logger.info(
            "cannot build %s ahead of time: %s. It will be built when it is needed", what, error
        )
        if held is not None:
            held.release()
        return False
    held.hand_over()
    # an exiting interpreter cannot start a thread, but after its exit, init reaps the child
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="cloudload-background", daemon=True).start()
    return True


def _spawn(
    build: Callable[[], object], lock: Path, held: file_locks.HeldLock
) -> subprocess.Popen[bytes]:
    import_path = json.dumps([os.path.abspath(path) for path in sys.path])
    # -I prevents the working directory and the environment from changing which modules are imported
    command = [sys.executable, "-I", "-c", _CHILD_CODE, import_path, str(lock)]
    trainer = open_trainer_pidfd()
    inherited = [held.fileno()] if trainer is None else [held.fileno(), trainer]
    try:
        with tempfile.TemporaryFile() as file:
            pickle.dump(build, file)
            file.seek(0)
            return subprocess.Popen(
                [*command, *map(str, inherited)],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=inherited,
                start_new_session=True,
            )
    finally:
        if trainer is not None:
            os.close(trainer)


def _child_main(lock: str, descriptor: str, trainer: str | None = None) -> None:
    os.nice(_NICENESS)
    held = file_locks.HeldLock.inherit(Path(lock), int(descriptor))
    if trainer is not None:
        exit_with_trainer(int(trainer))
    try:
        pickle.load(sys.stdin.buffer)()  # trusted: the process that started this one sent it
    finally:
        held.release()


def find_missing_script() -> str | None:
    """Return the main script's name, such as `<stdin>`, if other processes cannot import it.

    If they can, return None.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    is_importable = path is None or main.__spec__ is not None or os.path.exists(path)
    return None if is_importable else path


def send(connection: Connection, value: Any) -> None:
    """Pickle the value and send it; `Connection.recv` receives it.

    Raises `OSError` if the pipe is closed, and the pickler's error if the value has no pickle.

    `Connection.send` writes from a view of a `BytesIO`, and the traceback of a failed write refers
    to both. If that traceback becomes part of a reference cycle, collecting it aborts Python 3.12.1
    (python/cpython#111049) and prints an ignored exception on Python 3.13 (python/cpython#111331).
    An error of this function can be collected safely.
    """
    connection.send_bytes(bytes(ForkingPickler.dumps(value)))


def start_child(process: BaseProcess) -> None:
    """Start a process that calls `exit_with_parent`. Ctrl-C does not reach it before.

    Otherwise, Ctrl-C would print a traceback of each child that still imports modules. This does
    not apply to the start method forkserver, whose server starts children of others, too. Raises
    `OSError` if the process cannot be started.
    """
    blocked = [] if isinstance(process, ForkServerProcess) else [signal.SIGINT]
    resource_tracker.ensure_running()  # now, because its start ends the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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
    pid = os.getpid() if trainer is None or trainer.pid is None else trainer.pid
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor: int = os.pidfd_open(pid)
            return descriptor
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
