"""Local worker processes. Each process runs one unit at a time.

    this process ── function, argument ──► worker process
                 ◄─── bytes processed ────
                 ◄───── small result ─────

Each process has its own pipe and shares no lock. If one is killed at any moment, its pipe closes,
and this process raises a `WorkerError` that says how it died. The other workers are not affected.
(`ProcessPoolExecutor` of Python 3.11 can lose units, and wait for them forever, if a process dies
while units are submitted.) The processes are spawned, because this process may have threads and
store clients, which cannot be forked safely.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from cloudload.data import redact
from cloudload.errors import WorkerError
from cloudload.system import child_processes, machine

logger = logging.getLogger("cloudload.engines")

OnBytes = Callable[[int], object]
"""Receives the number of bytes processed since the last call."""

_END_S = 10.0
_REPORT_S = 0.5


@contextmanager
def open_processes(num_processes: int) -> Iterator[LocalProcesses | None]:
    """Yield `num_processes` processes, or None if the work should be done in this process.

    Yields None if `num_processes` is at most 1, or if other processes could not import the program.
    The processes exit at the end of the `with` block. After an error, they do not finish their
    units.
    """
    if num_processes > 1 and (script := child_processes.find_missing_script()):
        logger.warning(
            "working in one process, because worker processes cannot import the program: %s is not "
            "a file. Save the program as a file to use %d processes",
            script,
            num_processes,
        )
        num_processes = 1
    if num_processes <= 1:
        yield None
        return
    machine.raise_open_file_limit()
    processes = LocalProcesses(num_processes)
    try:
        yield processes
    finally:
        processes.close()


class LocalProcesses:
    """Worker processes, which exit soon after this process does, and ignore Ctrl-C."""

    def __init__(self, num_processes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._workers: dict[Any, Any] = {}
        self._running: dict[Any, int | None] = {}
        for _ in range(num_processes):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(theirs,), daemon=True)
            child_processes.start_child(process)
            theirs.close()  # so that the pipe closes when the process dies
            self._workers[ours] = process

    def run(
        self,
        function: Callable[[Any, OnBytes], Any],
        arguments: Iterable[Any],
        on_bytes: OnBytes | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield (place, result) of each unit, in the order of completion.

        Each unit calls `function(argument, report)`. While a unit runs, `on_bytes` receives the
        numbers that `function` passes to `report`. Raises `WorkerError` if a process dies, or if a
        unit cannot be sent to a process.
        """
        units = iter(enumerate(arguments))
        # Units of an earlier run that failed may still be running. Their results are dropped.
        self._running = dict.fromkeys(self._running)
        idle = [pipe for pipe in self._workers if pipe not in self._running]
        while True:
            while idle and (unit := next(units, None)):
                pipe = idle.pop()
                self._send(pipe, function, unit[1])
                self._running[pipe] = unit[0]
            if not self._running:
                return
            for pipe in wait(list(self._running)):
                result = self._receive(pipe)
                if isinstance(result, _Processed):
                    if on_bytes is not None and self._running[pipe] is not None:
                        on_bytes(result.bytes)
                    continue
                index = self._running.pop(pipe)
                idle.append(pipe)
                if index is not None:
                    yield index, result

    def close(self) -> None:
        """Stop the processes. Closing their pipes makes them exit when they are idle.

        After an error, all receive SIGTERM. A process that is still running after 10 s is killed.
        """
        for pipe in self._workers:
            pipe.close()
        is_failing = sys.exc_info()[0] is not None
        for process in self._workers.values():
            if is_failing:
                process.terminate()
        for process in self._workers.values():
            process.join(_END_S)
            process.kill()
            process.join()

    def _send(self, pipe: Any, function: Callable[..., Any], argument: Any) -> None:
        try:
            child_processes.send(pipe, (function, argument))
        except ConnectionError:
            raise WorkerError(_describe_loss(self._workers[pipe])) from None
        except Exception as error:
            what = f"cannot send work to a worker process: {type(error).__name__}: {error}"
            raise WorkerError(f"{redact(what)}. Run again with processes=1") from None

    def _receive(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, ConnectionError):
            raise WorkerError(_describe_loss(self._workers[pipe])) from None


def _describe_loss(process: Any) -> str:
    process.join(_END_S)
    worker, code = f"worker process {process.pid}", process.exitcode
    if code is not None and (code == child_processes.SIGTERM_STATUS or code < 0):
        received = signal.SIGTERM if code > 0 else signal.Signals(-code)
        hint = " (out of memory?)" if received == signal.SIGKILL else ""
        return (
            f"{worker} was killed by {received.name}{hint}. Run again to resume. If memory is "
            "short, use fewer processes"
        )
    return (
        f"{worker} exited with status {code}. {child_processes.GUARD_ADVICE}. Run again to resume, "
        "or use processes=1"
    )


def _work(pipe: Any) -> None:
    child_processes.exit_with_parent()
    machine.raise_open_file_limit()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, argument = pipe.recv()
            reporter = _Reporter(pipe)
            result = function(argument, reporter)
            reporter.send()
            pipe.send(result)


@dataclass(frozen=True)
class _Processed:
    """A message with the number of bytes that a unit has processed since the previous message."""

    bytes: int


class _Reporter:
    """Sends the number of bytes that a unit has processed, twice a second."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._bytes, self._sent = pipe, 0, time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        self._bytes += num_bytes
        if time.monotonic() - self._sent >= _REPORT_S:
            self.send()

    def send(self) -> None:
        """Send the number of bytes processed since the previous message."""
        if self._bytes:
            self._pipe.send(_Processed(self._bytes))
        self._bytes, self._sent = 0, time.monotonic()
