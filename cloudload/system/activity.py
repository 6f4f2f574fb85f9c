"""What a thread is doing, so that another thread or process can report a wait that is too long.

    with reported(report):                    5 s ──► report(5, "downloading s3://…") ── 10 s ──► …
        with doing("downloading s3://…"):
            …                                 a watching thread calls `report`

    with published(ring.write):               the text is written to shared memory when it changes,
        with doing("tokenizing"): …           and another process reads it

The innermost activity counts. `doing` costs microseconds in a thread that is reported or published,
and less in any other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Text = str | Callable[[], str]
"""An activity, or a function that describes it, which other threads may call."""
Report = Callable[[float, str], object]
"""Called with the seconds that a wait has lasted, and the current activity."""

_FIRST_REPORT_S, _LOOK_EVERY_S = 5.0, 1.0


class _Activity:
    """The activities of one thread, the innermost last."""

    def __init__(self, publish: Callable[[str], object] | None = None) -> None:
        self._texts: list[Text] = []
        self._publish, self._publishing = publish, threading.Lock()
        self.waits_since = time.monotonic()
        """When the current wait began to count; later than now during a grace period."""

    def describe(self) -> str:
        text = self._texts[-1:] or [""]  # a copy, because the thread may leave the activity now
        return text[0] if isinstance(text[0], str) else text[0]()

    def push(self, text: Text) -> None:
        self._texts.append(text)
        self.publish()

    def pop(self) -> None:
        self._texts.pop()
        self.publish()

    def publish(self) -> None:
        if self._publish is not None:
            with self._publishing:
                self._publish(self.describe())


class _Wait:
    """A block of a reported thread, and when it is reported next."""

    def __init__(self, activity: _Activity, report: Report) -> None:
        self._activity, self._report = activity, report
        self._began, self._next_s = time.monotonic(), _FIRST_REPORT_S

    def look(self) -> None:
        now = time.monotonic()
        if now - self._activity.waits_since >= self._next_s:
            self._next_s *= 2
            self._report(now - self._began, self._activity.describe())


class _Watcher:
    """Looks at the current waits every second, in a thread that ends when there have been none."""

    def __init__(self) -> None:
        self._lock, self._waits, self._is_running = threading.Lock(), set[_Wait](), False
        self._num_added = 0

    def add(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.add(wait)
            self._num_added += 1
            if not self._is_running:
                # an exiting interpreter cannot start threads
                with suppress(RuntimeError):
                    threading.Thread(
                        target=self._watch, name="cloudload-watch", daemon=True
                    ).start()
                    self._is_running = True

    def remove(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.discard(wait)

    def _watch(self) -> None:
        num_seen = -1
        while True:
            time.sleep(_LOOK_EVERY_S)
            with self._lock:
                waits = list(self._waits)
                if not waits and num_seen == self._num_added:
                    self._is_running = False
                    return
                num_seen = self._num_added
            for wait in waits:
                wait.look()


class _State:
    """The activities of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all activities."""
        self.local, self.watcher = threading.local(), _Watcher()
        self.published: _Activity | None = None

    def own(self) -> _Activity | None:
        """The activity of the calling thread, if it is reported or published."""
        found: _Activity | None = getattr(self.local, "activity", None)
        return found


_state = _State()
# a forked process has no watching thread, and its copies of the locks may be held
os.register_at_fork(after_in_child=_state.reset)


@contextmanager
def doing(text: Text, *, grace_s: float = 0.0) -> Iterator[None]:
    """Describe what this thread does in the block, as in "downloading s3://…".

    With `grace_s`, the block may take that much longer before it is reported, and the time after it
    counts as a new wait.
    """
    activity = _state.own()
    if activity is None:
        yield
        return
    activity.push(text)
    if grace_s:
        activity.waits_since = time.monotonic() + grace_s
    try:
        yield
    finally:
        activity.pop()
        if grace_s:
            activity.waits_since = time.monotonic()


@contextmanager
def reported(report: Report) -> Iterator[None]:
    """Call `report` from another thread if the block takes 5 s, and again after 10 s, 20 s, …

    Does nothing in a thread that is already reported or published.
    """
    if _state.own() is not None:
        yield
        return
    _state.local.activity = _Activity()
    wait = _Wait(_state.local.activity, report)
    _state.watcher.add(wait)
    try:
        yield
    finally:
        _state.watcher.remove(wait)
        _state.local.activity = None


@contextmanager
def published(publish: Callable[[str], object], text: str) -> Iterator[None]:
    """Call `publish` with each activity of this thread in the block, first with `text`.

    Only one thread of a process may be published.
    """
    _state.local.activity = _state.published = _Activity(publish)
    try:
        with doing(text):
            yield
    finally:
        _state.local.activity = _state.published = None


def refresh() -> None:
    """Publish the activity of the published thread again, because its description has changed."""
    if (activity := _state.published) is not None:
        activity.publish()
