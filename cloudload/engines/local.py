"""Processes of this machine, each of which takes one unit after another.

    this process ── function, argument ──► worker process ── small result ──►

The processes are spawned, because this one may have threads and store clients. If one dies, every
unit that is not finished fails with `WorkerError`, which says how it died.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from cloudload.system.main_script import GUARD_ADVICE, find_missing_script
from cloudload.system.open_files import raise_open_file_limit
from cloudload.system.parent_watch import SIGTERM_STATUS, exit_with_parent

logger = logging.getLogger(__name__)

_ENDED_S = 30.0
_STOPPED = (SIGTERM_STATUS, -signal.SIGTERM)


@contextmanager
def open_processes(number: int) -> Iterator[LocalProcesses | None]:
    """Yield an executor of `number` processes, or None if the work belongs in this process.

    It does with at most 1, or if other processes could not import the program. At the end, units
    that have not started are canceled.
    """
    if number > 1 and (script := find_missing_script()):
        logger.warning(
            "working in one process, because others cannot import the program: %s is not a file. "
            "Save the program as a file to use %d processes",
            script,
            number,
        )
        number = 1
    if number <= 1:
        yield None
        return
    raise_open_file_limit()
    with LocalProcesses(number) as executor:
        try:
            yield executor
        except BaseException:
            executor.stop()
            raise


class LocalProcesses(ProcessPoolExecutor):
    """Worker processes that exit soon after this process ends, and leave Ctrl-C to it."""

    def __init__(self, number: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        super().__init__(number, mp_context=spawn, initializer=_begin)
        self._workers: dict[int, Any] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        # the base class forgets its processes when one dies
        self._workers.update(self._processes or {})
        return future

    def stop(self) -> None:
        """Cancel the units that have not started, and end the processes."""
        self.shutdown(wait=False, cancel_futures=True)
        for process in self._workers.values():
            process.terminate()

    def describe_loss(self) -> str:
        """Describe how a process died, for an error message."""
        for process in self._workers.values():
            process.join(_ENDED_S)
        # when one process dies, the base class terminates the others
        ended = sorted(self._workers.values(), key=lambda process: process.exitcode in _STOPPED)
        if not ended or ended[0].exitcode in (None, 0):
            return f"a worker process ended. {GUARD_ADVICE}. Run again to resume"
        worker, code = f"worker process {ended[0].pid}", ended[0].exitcode
        if code == SIGTERM_STATUS or code < 0:
            number = signal.SIGTERM if code > 0 else signal.Signals(-code)
            hint = " (out of memory?)" if number == signal.SIGKILL else ""
            return (
                f"{worker} was killed by {number.name}{hint}. Run again to resume, with fewer "
                "processes if memory is short"
            )
        return (
            f"{worker} ended with exit status {code}. {GUARD_ADVICE}. Run again to resume, or use "
            "processes=1"
        )


def _begin() -> None:
    exit_with_parent()
    raise_open_file_limit()
