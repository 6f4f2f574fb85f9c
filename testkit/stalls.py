"""Make cloudload report waits early, and end a wait once it is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testkit.patience import soon


def report_early(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.5) -> None:
    """Make cloudload log each wait of this process that lasts longer than `seconds`."""
    monkeypatch.setattr("cloudload.system.activity.FIRST_REPORT_S", seconds)
    monkeypatch.setattr("cloudload.system.activity.LOOK_EVERY_S", 0.05)


@contextmanager
def ended_by(
    caplog: pytest.LogCaptureFixture, text: str, end: Callable[[], object]
) -> Iterator[None]:
    """Call `end` in a thread when a message that contains `text` is logged, or after 60 s. Fail if
    no such message was logged."""

    def is_logged() -> bool:
        return any(text in entry.getMessage() for entry in list(caplog.records))

    def watch() -> None:
        soon(is_logged, 60)
        end()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert is_logged(), [entry.getMessage() for entry in caplog.records]
