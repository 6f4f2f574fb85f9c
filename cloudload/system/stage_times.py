"""Measure how long a thread spends in each stage of its work.

    with stopwatch(times, PACK):      the time counts as PACK,
        with stage(TOKENIZE): …       except in a nested stage, where it counts as that stage

`times` may be in shared memory, so another process can read it at any time. The time of a stage is
added when the stage ends. A stage adds about a microsecond of overhead. Outside a stopwatch, a
stage does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

Times = np.ndarray[Any, np.dtype[np.int64]]
"""Nanoseconds in each stage: int64 [stages]."""


class _Stopwatch:
    def __init__(self, times: Times, current: int) -> None:
        self._times, self._current, self._since = times, current, time.perf_counter_ns()

    def switch(self, to: int) -> int:
        """Start the stage with index `to`, and return the index of the previous one."""
        now, before = time.perf_counter_ns(), self._current
        self._times[before] += now - self._since
        self._current, self._since = to, now
        return before


class _Local(threading.local):
    stopwatch: _Stopwatch | None = None


_local = _Local()


@contextmanager
def stopwatch(times: Times, of_rest: int) -> Iterator[None]:
    """Add this thread's time in the block to `times`.

    Time outside any `stage` block counts as the stage with index `of_rest`.
    """
    before, _local.stopwatch = _local.stopwatch, _Stopwatch(times, of_rest)
    try:
        yield
    finally:
        _local.stopwatch.switch(of_rest)
        _local.stopwatch = before


class stage:
    """Counts the time in a `with` block toward a stage, given by its index."""

    def __init__(self, number: int) -> None:
        self._number, self._stopwatch, self._before = number, _local.stopwatch, 0

    def __enter__(self) -> None:
        if self._stopwatch is not None:
            self._before = self._stopwatch.switch(self._number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stopwatch is not None:
            self._stopwatch.switch(self._before)
