"""A process that failed to start is lost, unless it may still start iterating."""

from __future__ import annotations

import contextlib
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
    assert waiting.find_lost(never) == {3: "raised OSError: the disk is full"}
    with failing.starting():
        assert waiting.find_lost(never) == {}
    fail(failing, ValueError("a bad path"))
    assert waiting.find_lost(never) == {3: "raised ValueError: a bad path"}


def test_a_process_that_arrived_is_not_lost(both: tuple[Attendance, Attendance]) -> None:
    waiting, failing = both
    fail(failing, OSError("no optional data"))
    assert waiting.find_lost(lambda rank: rank == 3) == {}


def test_an_error_that_the_waiting_process_survived_is_no_reason(
    both: tuple[Attendance, Attendance],
) -> None:
    waiting, failing = both
    for each in both:
        fail(each, OSError("no optional data"))
    assert waiting.find_lost(never) == {}
    fail(failing, ValueError("a bad path"))
    assert waiting.find_lost(never) == {3: "raised ValueError: a bad path"}


def test_others_wait_a_while_for_another_try(
    both: tuple[Attendance, Attendance], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, failing = both
    monkeypatch.setattr(attendance, "_GRACE_S", 30.0)
    fail(failing, OSError("the disk is full"))
    now = [1_000.0]
    monkeypatch.setattr("cloudload.delivery.attendance.time.monotonic", lambda: now[0])
    assert waiting.find_lost(never) == {}
    now[0] += 29.0
    assert waiting.find_lost(never) == {}
    now[0] += 2.0
    assert waiting.find_lost(never) == {3: "raised OSError: the disk is full"}
