"""Worker processes that take tasks, for work that is mostly large bytes.

    this process ── (function, argument) ──► worker process ── result ──►
                    small values are pickled; bytes of a megabyte go as descriptors of anonymous memory

The process that hands tasks out never copies what it passes on: bytes that a worker returned arrive
as `SharedBytes`, which can be cut and sent to another worker unread. The kernel frees them with the
last process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from cloudload.convert.shared_bytes import Message, SharedBytes, receive
from cloudload.errors import CloudloadError, WorkerError
from cloudload.system.open_files import raise_open_file_limit

Function = Callable[[Any, Any], Any]
Task = tuple["Future[Any]", Function, Any]
_PATIENCE_S = 30.0


class Executor(Protocol):
    """Runs `function(context, argument)` for each task, somewhere."""

    def submit(self, function: Function, argument: Any) -> Future[Any]: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def open_executor(context: Any, processes: int) -> Iterator[Executor]:
    """Worker processes that each hold `context`; this process itself for `processes=1`."""
    if processes > 1:
        raise_open_file_limit()
    executor: Executor = Pool(context, processes) if processes > 1 else Inline(context)
    with contextlib.closing(executor):
        yield executor


def run_in_order(
    executor: Executor, function: Function, items: Iterable[Any], ahead: int
) -> Iterator[tuple[Any, Any]]:
    """Each item with the function's result, in order, with at most `ahead` of them under way."""
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    for item in items:
        waiting.append((item, executor.submit(function, item)))
        if len(waiting) > ahead:
            yield _take(waiting)
    while waiting:
        yield _take(waiting)


def _take(waiting: deque[tuple[Any, Future[Any]]]) -> tuple[Any, Any]:
    item, future = waiting.popleft()
    return item, future.result()


class Inline:
    """The work done here and now."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def submit(self, function: Function, argument: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(self._context, argument))
        return future

    def close(self) -> None:
        pass


class Pool:
    """Worker processes, each with a socket and a thread of its own: when a process dies its socket
    ends, and nobody waits for it.

    Processes are spawned, not forked: this process may have threads and clients. One that loses its
    parent ends by itself.
    """

    def __init__(self, context: Any, processes: int) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._failure: WorkerError | None = None
        self._processes: list[Any] = []
        spawn = multiprocessing.get_context("spawn")
        for _ in range(processes):
            ours, theirs = socket.socketpair()
            process = spawn.Process(target=_work, args=(theirs, context), daemon=True)
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
        """Drop what waits; each process ends after what it is at, so that it leaves no temporary
        file."""
        self._fail_all(WorkerError("the work was stopped"))
        for _ in self._processes:
            self._tasks.put(None)
        for process in self._processes:
            process.join(_PATIENCE_S)
            process.kill()
            process.join()

    def _serve(self, process: Any, pipe: socket.socket) -> None:
        with pipe:
            while task := self._tasks.get():
                if not self._do(task, process, pipe):
                    return

    def _do(self, task: Task, process: Any, pipe: socket.socket) -> bool:
        """Have one task done; False when the process is gone."""
        future, function, argument = task
        try:
            message = Message.of((function, argument))
        except Exception as error:
            future.set_exception(
                WorkerError(
                    f"cannot hand work to a worker process: {type(error).__name__}: {error}"
                )
            )
            return True
        try:
            message.send(pipe)
            succeeded, value = receive(pipe, lambda shared: shared)
        except Exception as error:
            self._failure = WorkerError(_epitaph(process, error))
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


def _epitaph(process: Any, error: Exception) -> str:
    """Why no more work can be given to a process: it is gone, or this one cannot talk to it."""
    if not isinstance(error, EOFError | ConnectionError):
        return (
            f"cannot talk to worker process {process.pid}: "
            f"{type(error).__name__}: {error}. Run "
            "again with fewer processes"
        )
    process.join(_PATIENCE_S)
    code = process.exitcode
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}" + (
            " (out of memory?)" if code == -signal.SIGKILL else ""
        )
        return (
            f"worker process {process.pid} {how}. Run again to go on, with fewer processes if "
            "memory is short"
        )
    return (
        f"worker process {process.pid} ended with exit status {code}. Run again to go on; "
        "a script must start its work below `if __name__ == '__main__':`, or use processes=1"
    )


def _work(pipe: socket.socket, context: Any) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    raise_open_file_limit()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, argument = receive(pipe, SharedBytes.read)
            Message.of(_attempt(function, context, argument)).send(pipe)


def _attempt(function: Function, context: Any, argument: Any) -> tuple[bool, Any]:
    try:
        return True, function(context, argument)
    except CloudloadError as error:
        # only the message travels: a cause may not survive pickling
        return False, type(error)(str(error))
    except Exception:
        import traceback

        return False, WorkerError(f"a worker process failed:\n{traceback.format_exc()}")
