"""Run a call in a low-priority process that may outlive its worker, but not the training process.

    this process ── lock held, argument in an unnamed file ──► new interpreter
                                                               own session, niced
                                                               calls, unlocks, exits

The child is a new interpreter, not a fork, because this process may have threads and store clients.
It is not a `multiprocessing` child, because worker processes are daemonic and may not have
children. The child inherits the lock, so the kernel releases the lock if the child dies. A thread
in this process waits for the child, so that the child does not remain a zombie. The child's errors
are not reported, because a process that finds no result builds the result itself. If the kernel or
Python does not support pidfds, the child may also outlive the training process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from cloudload.system import file_locks
from cloudload.system.parent_watch import exit_with_trainer, open_trainer_pidfd

logger = logging.getLogger("cloudload.system")

_NICENESS = 10

_CHILD_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from cloudload.system.background_process import _child_main
_child_main(*sys.argv[2:])
"""


def run_detached(function: str, argument: bytes, lock: Path) -> bool:
    """Call `function` with `argument` in a new process that holds `lock`, and return immediately.

    `function` is a name such as "package.module:name". Returns False if the lock is already held or
    if no process can be started, otherwise True. Raises `OSError` if the lock cannot be created.
    """
    held = file_locks.acquire(lock, wait=False) if sys.executable else None
    if held is None:
        return False
    trainer = open_trainer_pidfd()
    try:
        inherited = [held.fileno()] if trainer is None else [held.fileno(), trainer]
        process = _spawn([function, str(lock.absolute())], argument, inherited)
    except OSError as error:
        logger.info(
            "cannot start a background process for %s: %s. The result will be computed when it is "
            "needed",
            function,
            error,
        )
        held.release()
        return False
    finally:
        if trainer is not None:
            os.close(trainer)
    held.hand_over()
    # an exiting interpreter cannot start a thread, but after its exit, init reaps the child
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="cloudload-background", daemon=True).start()
    return True


def _spawn(
    arguments: Sequence[str], data: bytes, inherited: Sequence[int]
) -> subprocess.Popen[bytes]:
    import_path = json.dumps([os.path.abspath(path) for path in sys.path])
    # -I prevents the working directory and the environment from changing which modules are imported
    command = [sys.executable, "-I", "-c", _CHILD_CODE, import_path]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return subprocess.Popen(
            [*command, *arguments, *map(str, inherited)],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=inherited,
            start_new_session=True,
        )


def _child_main(function: str, lock: str, descriptor: str, trainer: str | None = None) -> None:
    os.nice(_NICENESS)
    held = file_locks.HeldLock.inherit(Path(lock), int(descriptor))
    if trainer is not None:
        exit_with_trainer(int(trainer))
    module, name = function.split(":")
    try:
        __import__(module)
        getattr(sys.modules[module], name)(sys.stdin.buffer.read())
    finally:
        held.release()
