"""Track what a thread is doing: to report a long wait, and to measure the stages of its work.

    with Wait(report, "working"):             5 s ──► report(5, "downloading s3://…") ── 10 s ──► …
        with doing("downloading s3://…"):
            …                                 a watching thread calls `report`

    with published(ring.write):               the text is written to shared memory when it changes,
        with doing("tokenizing"): …           and another process reads it

The innermost activity is reported. Entering a wait or an activity takes about a microsecond.

    with stopwatch(times, PACK):              the time counts as PACK, except
        with stage(TOKENIZE): …               in a nested stage, where it counts as that stage

`times` may be in shared memory, so another process can read it at any time. The time of a stage is
added when the stage ends. A stage adds about a microsecond of overhead. Outside a stopwatch, a
stage does nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

Text = str | Callable[[], str]
"""The text of an activity, or a function that returns it. Any thread may call the function."""
Report = Callable[[float, str], object]
"""A function that reports a wait. It receives the wait's duration in seconds, and the activity."""

NOTICE_S, FIRST_REPORT_S, LOOK_EVERY_S = 2.0, 5.0, 1.0

Times = np.ndarray[Any, np.dtype[np.int64]]
"""Nanoseconds in each stage: int64 [stages]."""


class _Activities:
    """The nested activities of one thread, outermost first."""

    def __init__(self, text: Text, began: float | None = None) -> None:
        self.texts, self.began = [text], began
        """`began` is None outside the block; see `Wait`."""
        self.counts_from = 0.0
        """The start, in `time.monotonic` seconds, of the time until the next report."""

    def describe(self) -> str:
        text = self.texts[-1]
        return text if isinstance(text, str) else text()

    def publish(self) -> None:
        """Notify other threads and processes that the activity has changed."""


class _Published(_Activities):
    def __init__(self, text: Text, publish: Callable[[str], object]) -> None:
        super().__init__(text, began=0.0)
        # reentrant, because a garbage collection meanwhile may end other blocks of this thread
        self._publish, self._publishing = publish, threading.RLock()
        self.publish()

    def publish(self) -> None:
        with self._publishing:
            self._publish(self.describe())


class Wait:
    """Calls `report` from another thread when a `with` block has taken 5 s, 10 s, 20 s, …

    If there is a `notice`, it is called once for each block that has taken 2 s.

    The reported activity is that of the innermost `doing` block, or `text` outside such blocks. A
    `Wait` does nothing in a thread that is already in a `Wait` or a `published` block. It may be
    entered repeatedly, but only by one thread at a time.
    """

    def __init__(self, report: Report | None, text: Text, notice: Report | None = None) -> None:
        self._report, self._activities, self._notice = report, _Activities(text), notice
        self._is_noticed = self.is_watched = False
        self._next_s, self._is_idle = 0.0, False

    @property
    def began(self) -> float | None:
        """When the block began, in `time.monotonic` seconds; None outside a block."""
        return self._activities.began

    def __enter__(self) -> None:
        if state.own() not in (None, self._activities):  # its own are those of an interrupted exit
            return
        now = time.monotonic()
        self._next_s, self._activities.counts_from, self._is_idle = FIRST_REPORT_S, now, False
        self._is_noticed = False
        del self._activities.texts[1:]  # of blocks whose entry was interrupted
        try:
            self._activities.began = now
            # a weak reference, so that an interrupted block ends with the objects of its frames
            state.local.activities = weakref.ref(self._activities)
            if not self.is_watched:
                state.watcher.add(self)
        except BaseException:  # an interrupt, after which Python does not call `__exit__`
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._activities.began = None  # in one step, which an interrupt does not divide

    def look(self) -> bool:
        """Report the wait if a report is due. Return whether to check again."""
        began, now = self.began, time.monotonic()
        if began is None:
            was_idle, self._is_idle = self._is_idle, True
            return not was_idle
        if self._notice is not None and not self._is_noticed and now - began >= NOTICE_S:
            self._is_noticed = True
            self._notice(now - began, self._activities.describe())
        if self._report is not None and now - self._activities.counts_from >= self._next_s:
            self._next_s *= 2
            self._report(now - began, self._activities.describe())
        return True


class Watcher:
    """Checks all waits every second in a thread, which ends when no waits remain."""

    def __init__(self) -> None:
        # reentrant, because a garbage collection meanwhile may close a loader, which may wait
        self._lock, self._is_running = threading.RLock(), False
        # use weak references, so that an abandoned loader can be garbage-collected immediately
        self._waits = weakref.WeakSet[Wait]()

    def add(self, wait: Wait) -> None:
        with self._lock:
            self._waits.add(wait)
            if not self._is_running:
                # an exiting interpreter cannot start threads
                with suppress(RuntimeError):
                    threading.Thread(
                        target=self._watch, name="cloudload-watch", daemon=True
                    ).start()
                self._is_running = True
            wait.is_watched = True  # only now, so that after an interrupt, the next entry adds it

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            if not self._look():
                return

    def _look(self) -> bool:
        """Check all waits, remove the idle ones, and return whether any remain."""
        idle = [wait for wait in list(self._waits) if not wait.look()]
        with self._lock:
            for wait in idle:
                wait.is_watched = False
                # check again, because the waiting thread sets `began` before it reads `is_watched`
                if wait.began is None:
                    self._waits.discard(wait)
                else:
                    wait.is_watched = True
            self._is_running = bool(self._waits)
            return self._is_running


class _State:
    """The activities of this process's threads, and the watcher of their waits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all activities and waits."""
        self.local, self.watcher = threading.local(), Watcher()
        self.published: _Published | None = None

    def own(self) -> _Activities | None:
        """The activities of the calling thread, if it is in a `Wait` or a `published` block."""
        find: Callable[[], _Activities | None] = getattr(self.local, "activities", _find_none)
        found = find()
        return None if found is None or found.began is None else found


def _find_none() -> None:
    """Find no activities, in a thread that has none."""


state = _State()
# a forked process has no watching thread, and its copies of the locks may be held
os.register_at_fork(after_in_child=state.reset)


class doing:
    """Describes what this thread does in a `with` block, such as "downloading s3://…".

    With `grace_s`, the time until the next report is measured from `grace_s` seconds after the
    block begins. After the block, that time is measured from the end of the block.
    """

    def __init__(self, text: Text, *, grace_s: float = 0.0) -> None:
        self._text, self._grace_s, self._activities = text, grace_s, state.own()

    def __enter__(self) -> None:
        if (activities := self._activities) is not None:
            activities.texts.append(self._text)
            activities.publish()
            if self._grace_s:
                activities.counts_from = time.monotonic() + self._grace_s

    def __exit__(self, *_: object) -> None:
        if (activities := self._activities) is not None:
            activities.texts.pop()
            activities.publish()
            if self._grace_s:
                activities.counts_from = time.monotonic()


@contextmanager
def published(publish: Callable[[str], object], text: str) -> Iterator[None]:
    """Call `publish` with each activity of this thread in the block, first with `text`.

    Only one thread of a process may be in such a block.
    """
    state.published = activities = _Published(text, publish)
    state.local.activities = lambda: activities
    try:
        yield
    finally:
        state.local.activities, state.published = _find_none, None


def refresh() -> None:
    """Publish the activity of the `published` block again, after its description has changed."""
    if (activities := state.published) is not None:
        activities.publish()


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

    def __init__(self, index: int) -> None:
        self._index, self._stopwatch, self._before = index, _local.stopwatch, 0

    def __enter__(self) -> None:
        if self._stopwatch is not None:
            self._before = self._stopwatch.switch(self._index)

    def __exit__(self, *_: object) -> None:
        if self._stopwatch is not None:
            self._stopwatch.switch(self._before)
