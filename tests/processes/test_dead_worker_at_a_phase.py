"""A worker that dies before it has read its next phase does not block the training process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import WorkerError
from cloudload.loading.workers.processes import WorkerProcess

LARGER_THAN_A_SOCKET = bytes(1 << 24)


def leave_a_child_and_die(_connection: Connection, pid_file: Path) -> None:
    if (child := os.fork()) == 0:
        time.sleep(3_600)  # keeps the stream open, but does not read
        os._exit(0)
    pid_file.write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(120)
def test_a_dead_worker_whose_child_keeps_the_stream_open_is_reported(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("fork")
    connection, theirs = context.Pipe()
    process = context.Process(
        target=leave_a_child_and_die, args=(theirs, tmp_path / "pid"), daemon=True
    )
    process.start()
    theirs.close()
    worker: Any = WorkerProcess.__new__(WorkerProcess)
    worker._connection, worker._process, worker._has_block = connection, process, False
    try:
        worker.enter(LARGER_THAN_A_SOCKET)
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            worker.receive()
    finally:
        process.join()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        connection.close()
