"""How long cloudload retries requests in tests, and how long tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cloudload import Retry
from cloudload.errors import StoreError

QUICK = Retry(timeout_s=1.5, deadline_s=4.0, pause_s=0.05)
PATIENT = Retry(timeout_s=1.0, deadline_s=60.0, pause_s=0.05)

SOON_S = 60.0
"""Time limit for calls that must not wait for the default deadline of a request.

It is half of that deadline, so that slow machines also pass.
"""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if this block takes longer than `seconds`."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def refused(match: str) -> Iterator[pytest.ExceptionInfo[StoreError]]:
    """Check that this block raises a `StoreError` with a message that matches, and soon."""
    with within(SOON_S), pytest.raises(StoreError, match=match) as caught:
        yield caught


def soon(condition: Callable[[], bool], seconds: float = 25.0) -> bool:
    """Wait until `condition` is true, at most `seconds`. Returns whether it became true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
