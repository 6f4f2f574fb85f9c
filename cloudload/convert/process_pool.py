"""Worker processes for tasks whose arguments and results are mostly large bytes.

    this process ── (function, argument) ──► worker process ── result ──►
                    small values are pickled; bytes of 1 MiB or more are passed as `SharedBytes`

This process has a socket and a thread for each worker. If a worker dies, its socket closes, so its
task and all waiting tasks fail instead of hanging.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from cloudload.convert.shared_bytes import Message, SharedBytes, receive
from cloudload.errors import CloudloadError, WorkerError
from cloudload.storage.redaction import redact
from cloudload.system.main_script import GUARD_ADVICE, find_missing_script
from cloudload.system.open_files import raise_open_file_limit

logger = logging.getLogger(__name__)
Function = Callable[[Any, Any], Any]
Task = tuple["Future[Any]", Function, Any]
_CLOSE_S = 30.0


class Executor(Protocol):
    """Runs `function(context, argument)` for each task, in this process or in a worker."""

    def submit(self, function: Function, argument: Any) -> Future[Any]: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def open_executor(context: Any, processes: int) -> Iterator[Executor]:
    """Yield an executor with `processes` worker processes, each with a copy of `context`.

    With `processes=1`, or if other processes could not import the program, tasks run in this
    process. Closes the executor on exit.
    """
    if processes > 1 and (script := find_missing_script()):
        logger.warning(
            "working in one process, because others cannot import the program: %s is not a file. "
            "Save the program as a file to use %d processes",
            script,
            processes,
        )
        processes = 1
    if processes > 1:
        raise_open_file_limit()
    executor: Executor = ProcessPool(context, processes) if processes > 1 else Inline(context)
    with contextlib.closing(executor):
        yield executor


class Inline:
    """Runs each task in this process, within `submit`, which raises the task's error."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def submit(self, function: Function, argument: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(self._context, argument))
        return future

    def close(self) -> None:
        pass


class ProcessPool:
    """Worker processes, spawned because this process may have threads and store clients.

    A worker whose parent dies exits after its current task. A task that fails raises the worker's
    `CloudloadError`, or `WorkerError` with the traceback of any other exception.
    """

    def __init__(self, context: Any, processes: int) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._failure: WorkerError | None = None
        self._processes: list[Any] = []
        # not an argument of the process: `multiprocessing` would wait forever if the worker died
        # before it had read a large one
        self._context = Message.of(context)
        spawn = multiprocessing.get_context("spawn")
        for _ in range(processes):
            ours, theirs = socket.socketpair()
            process = spawn.Process(target=_worker_main, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            threading.Thread(target=self._serve, args=(process, ours), daemon=True).start()

    def submit(self, function: Function, argument: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, function, argument))
        if self._failure:
            self._fail_all(self._failure)
        return future

    def close(self) -> None:
        """Fail the waiting tasks, and let each process finish its current one.

        A process that finishes leaves no temporary files. One that takes longer than 30 s is
        killed.
        """
        self._fail_all(WorkerError("the work was stopped"))
        for _ in self._processes:
            self._tasks.put(None)
        for process in self._processes:
            process.join(_CLOSE_S)
            process.kill()
            process.join()

    def _serve(self, process: Any, pipe: socket.socket) -> None:
        with pipe:
            with contextlib.suppress(ConnectionError):  # the worker has died, as its task will say
                self._context.send(pipe)
            while task := self._tasks.get():
                if not self._run(task, process, pipe):
                    return

    def _run(self, task: Task, process: Any, pipe: socket.socket) -> bool:
        """Run a task in a worker, and return whether the worker can run more tasks."""
        future, function, argument = task
        try:
            message = Message.of((function, argument))
        except Exception as error:
            what = f"cannot send work to a worker process: {type(error).__name__}: {error}"
            future.set_exception(WorkerError(f"{what}. Run again with processes=1"))
            return True
        try:
            message.send(pipe)
            succeeded, value = receive(pipe, lambda shared: shared)
        except Exception as error:
            self._failure = WorkerError(_describe_loss(process, error))
            future.set_exception(self._failure)
            self._fail_all(self._failure)
            return False
        if succeeded:
            future.set_result(value)
        else:
            future.set_exception(value)
        return True

    def _fail_all(self, failure: WorkerError) -> None:
        with contextlib.suppress(queue.Empty):
            while task := self._tasks.get_nowait():
                task[0].set_exception(failure)


def _describe_loss(process: Any, error: Exception) -> str:
    """Describe why a worker was lost: it ended, or communication with it failed."""
    worker = f"worker process {process.pid}"
    if not isinstance(error, EOFError | ConnectionError):
        what = f"cannot communicate with {worker}: {type(error).__name__}: {error}"
        return f"{what}. Run again with fewer processes"
    process.join(_CLOSE_S)
    code = process.exitcode
    if code is not None and code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return (
            f"{worker} was killed by {signal.Signals(-code).name}{hint}. Run again to resume, with "
            "fewer processes if memory is short"
        )
    return (
        f"{worker} ended with exit status {code}. {GUARD_ADVICE}. Run again to resume, or use "
        "processes=1"
    )


def _worker_main(pipe: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    raise_open_file_limit()
    with contextlib.suppress(EOFError, ConnectionError):
        context = receive(pipe, SharedBytes.read)
        while True:
            function, argument = receive(pipe, SharedBytes.read)
            Message.of(_attempt(function, context, argument)).send(pipe)


def _attempt(function: Function, context: Any, argument: Any) -> tuple[bool, Any]:
    try:
        return True, function(context, argument)
    except CloudloadError as error:
        return False, error  # pickling drops its cause and traceback
    except Exception:
        return False, WorkerError(f"a worker process failed:\n{redact(traceback.format_exc())}")
