"""A process that failed to start is lost, unless it may still start iterating."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pytest
import torch.distributed as dist

from cloudload.delivery import attendance
from cloudload.delivery.attendance import Attendance


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Attendance, Attendance]:
    monkeypatch.setattr(attendance, "_GRACE_S", 0.0)
    store: Any = dist.HashStore()
    return Attendance(store, 0), Attendance(store, 3)


def fail(one: Attendance, error: Exception) -> None:
    with contextlib.suppress(type(error)), one.starting():
        raise error


def never(_: int) -> bool:
    return False


def test_an_error_is_told_to_the_others_until_the_next_try(
    both: tuple[Attendance, Attendance],
) -> None:
    waiting, failing = both
    fail(failing, OSError("the disk is full"))
    assert waiting.watch()(never) == {3: "raised OSError: the disk is full"}
    with failing.starting():
        assert waiting.watch()(never) == {}
    fail(failing, ValueError("a bad path"))
    assert waiting.watch()(never) == {3: "raised ValueError: a bad path"}


def test_a_process_that_arrived_is_not_lost(both: tuple[Attendance, Attendance]) -> None:
    waiting, failing = both
    fail(failing, OSError("no optional data"))
    assert waiting.watch()(lambda rank: rank == 3) == {}


def test_an_error_that_the_waiting_process_survived_is_no_reason(
    both: tuple[Attendance, Attendance],
) -> None:
    waiting, failing = both
    for each in both:
        fail(each, OSError("no optional data"))
    assert waiting.watch()(never) == {}
    fail(failing, ValueError("a bad path"))
    assert waiting.watch()(never) == {3: "raised ValueError: a bad path"}


class Clock:
    """A replacement of `time.monotonic`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("cloudload.delivery.attendance.time.monotonic", lambda: self.now)


def test_others_wait_a_while_for_another_try(
    both: tuple[Attendance, Attendance], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, failing = both
    monkeypatch.setattr(attendance, "_GRACE_S", 60.0)
    fail(failing, OSError("the disk is full"))
    clock = Clock(monkeypatch)
    assert waiting.watch()(never) == {}
    clock.now += 3_600.0
    find_lost = waiting.watch()
    assert find_lost(never) == {}, "an old notice does not count from its arrival"
    clock.now += 59.0
    assert find_lost(never) == {}
    clock.now += 2.0
    assert find_lost(never) == {3: "raised OSError: the disk is full"}
    fail(failing, OSError("the disk is still full"))
    assert find_lost(never) == {}, "nor does a new one from the beginning of the wait"
    clock.now += 61.0
    assert find_lost(never) == {3: "raised OSError: the disk is still full"}


def test_a_process_has_ended_if_two_looks_find_so(
    both: tuple[Attendance, Attendance], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, _ = both
    ended = {3}
    monkeypatch.setattr(waiting._presence, "find_ended", lambda: set(ended))
    clock, find_lost = Clock(monkeypatch), waiting.watch()
    assert find_lost(never) == {}
    clock.now += 4.0
    assert find_lost(never) == {}
    ended.clear()
    assert find_lost(never) == {}
    ended.add(3)
    clock.now += 4.0
    assert find_lost(never) == {}
    clock.now += 6.0
    assert find_lost(lambda rank: rank == 3) == {}
    assert find_lost(never) == {3: "has ended"}


def test_notices_of_an_earlier_job_do_not_count(
    both: tuple[Attendance, Attendance],
) -> None:
    first, second = both
    fail(second, OSError("the disk is full"))
    store, retired = first._store, {first.generation}
    first.close()
    again = Attendance(store, 0, retired, math.inf)
    assert again.watch()(never) == {}
    new = Attendance(store, 3, retired, math.inf)
    fail(new, ValueError("a bad path"))
    assert again.watch()(never) == {3: "raised ValueError: a bad path"}
    fresh = Attendance(store, 1, since=time.time())
    assert fresh.watch()(never) == {3: "raised ValueError: a bad path"}, "of its generation"
