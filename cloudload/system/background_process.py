"""A call in a process of its own that slows nobody, and may outlive the worker that started it, but
not the training process.

    this process ── lock held, argument in an unnamed file ──► interpreter, its own session, niced ── calls, unlocks ──► its end

Nothing is forked that has threads or clients, and worker processes, which may have no children of
multiprocessing's, may start one. The lock goes to the new process, and the kernel frees it if that
dies; a thread here waits for its end, so that no zombie is left. That its call did not succeed,
nobody hears: whoever needs the result looks for it, and makes it himself.
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
from pathlib import Path

from cloudload.system.file_locks import acquire, release
from cloudload.system.parent_watch import open_trainer, tie_to_trainer
from cloudload.system.temp_files import forget, note

logger = logging.getLogger(__name__)

_NICENESS = 10

_CODE = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from cloudload.system.background_process import answer
answer(*sys.argv[2:])
"""


def start(function: str, argument: bytes, lock: Path) -> bool:
    """Call `function`, such as "package.module:name", with `argument`, elsewhere, holding `lock`;
    returns at once.

    False where the lock is held already, or no process can be started.
    """
    descriptor = acquire(lock, wait=False) if sys.executable else None
    if descriptor is None:
        return False
    trainer = open_trainer()
    passed = [descriptor] if trainer is None else [descriptor, trainer]
    try:
        with tempfile.TemporaryFile() as file:
            file.write(argument)
            file.seek(0)
            # -I: neither the working directory nor the environment may change what is imported
            command = [
                sys.executable,
                "-I",
                "-c",
                _CODE,
                json.dumps([os.path.abspath(path) for path in sys.path]),
            ]
            process = subprocess.Popen(
                [*command, function, str(lock.absolute()), *map(str, passed)],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=passed,
                start_new_session=True,
            )
    except OSError as error:
        logger.info("no background process for %s: %s", function, error)
        release(lock, descriptor)
        return False
    finally:
        if trainer is not None:
            os.close(trainer)
    forget(lock)
    os.close(descriptor)
    # an interpreter on its way out starts no threads, and leaves its processes to init
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=process.wait, name="cloudload-background", daemon=True).start()
    return True


def answer(function: str, lock: str, descriptor: str, trainer: str | None = None) -> None:
    """What the new process does."""
    os.nice(_NICENESS)
    note(Path(lock), int(descriptor))
    if trainer is not None:
        tie_to_trainer(int(trainer))
    module, name = function.split(":")
    try:
        __import__(module)
        getattr(sys.modules[module], name)(sys.stdin.buffer.read())
    finally:
        release(Path(lock), int(descriptor))
