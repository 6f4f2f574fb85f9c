"""A long wait is reported with the thread's current activity."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from cloudload.system import activity
from cloudload.system.activity import Wait, doing, published, refresh
from cloudload.system.shared_memory import SharedMemoryRing
from testkit.interrupts import count_visits, interrupt, list_edges
from testkit.patience import soon


@pytest.fixture(autouse=True)
def report_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudload.system.activity.FIRST_REPORT_S", 0.2)
    monkeypatch.setattr("cloudload.system.activity.LOOK_EVERY_S", 0.02)


class Reports(list[str]):
    """A report function that collects the reported activities."""

    def __call__(self, waited_s: float, what: str) -> None:
        self.append(what)

    def has(self, number: int) -> Callable[[], bool]:
        return lambda: len(self) >= number


def test_the_innermost_activity_is_reported_and_again_later() -> None:
    reports, began = Reports(), time.monotonic()
    with Wait(reports, "working"), doing("outer"):
        with doing("inner"):
            assert soon(reports.has(1))
        assert soon(lambda: reports.count("outer") == 2)
    # a busy machine may leave time for a second report before the inner activity ends
    assert list(dict.fromkeys(reports)) == ["inner", "outer"]
    assert time.monotonic() - began >= 0.8, "the pauses between reports must grow"


def test_a_short_wait_is_not_reported() -> None:
    reports = Reports()
    for _ in range(20):
        with Wait(reports, "working"), doing("a step"):
            time.sleep(0.03)
    assert not reports


def test_only_the_outermost_block_reports() -> None:
    outer, inner = Reports(), Reports()
    with Wait(outer, "working"), Wait(inner, "working"), doing("a step"):
        assert soon(outer.has(1))
    assert not inner


def test_a_description_is_computed_only_when_it_is_reported() -> None:
    reports, attempts = Reports(), [1]
    with Wait(reports, "working"), doing(lambda: f"attempt {attempts[-1]}"):
        attempts.append(2)
        assert soon(reports.has(1))
    assert reports == ["attempt 2"]


def test_threads_report_their_own_activities() -> None:
    found = {"one": Reports(), "two": Reports()}

    def work(name: str) -> None:
        with Wait(found[name], "working"), doing(name):
            soon(found[name].has(1))

    threads = [threading.Thread(target=work, args=(name,)) for name in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": ["one"], "two": ["two"]}


def test_a_grace_period_delays_the_report_and_what_follows_is_a_new_wait() -> None:
    reports = Reports()
    with Wait(reports, "working"):
        with doing("starting", grace_s=30):
            time.sleep(0.6)
        time.sleep(0.05)
        assert not reports
        with doing("working"):
            assert soon(reports.has(1))
    assert reports == ["working"]


def test_the_watching_thread_ends_when_nothing_waits() -> None:
    def is_watched() -> bool:
        return any(thread.name == "cloudload-watch" for thread in threading.enumerate())

    with Wait(Reports(), "working"):
        assert is_watched()
    assert soon(lambda: not is_watched())
    with Wait(Reports(), "working"):
        assert is_watched()


def test_a_process_that_is_forked_during_a_wait_reports_its_own_waits() -> None:
    read, write = os.pipe()
    with Wait(Reports(), "working"), doing("the parent's"):
        if not (pid := os.fork()):
            reports = Reports()
            with Wait(reports, "working"), doing("the child's"):
                soon(reports.has(1))
            os.write(write, ",".join(reports).encode())
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 99) == b"the child's"
    os.close(read)
    os.close(write)


def test_an_activity_is_published_as_it_changes_and_when_it_is_refreshed() -> None:
    texts: list[str] = []
    attempts = [1]
    with published(texts.append, "idle"):
        with doing(lambda: f"attempt {attempts[-1]}"):
            attempts.append(2)
            thread = threading.Thread(target=refresh)
            thread.start()
            thread.join()
        with Wait(Reports(), "working"), doing("another step"):
            pass
    refresh()
    assert texts[:5] == ["idle", "attempt 1", "attempt 2", "idle", "another step"]


def test_a_text_is_cut_to_its_slot_and_replaces_a_longer_one() -> None:
    ring = SharedMemoryRing(2, 64)
    ring.write_text(1, "é" * 100)
    assert ring.read_text(1) == "é" * 32
    ring.write_text(1, "a" + "é" * 40)
    assert ring.read_text(1) == "a" + "é" * 31
    ring.write_text(1, "short")
    assert (ring.read_text(0), ring.read_text(1)) == ("", "short")


def test_a_text_is_read_whole_while_it_is_written() -> None:
    ring, is_over = SharedMemoryRing(1, 2048), threading.Event()
    texts = ["a" * 2000, "b" * 10, "c" * 1500]

    def write() -> None:
        while not is_over.is_set():
            for text in texts:
                ring.write_text(0, text)

    ring.write_text(0, texts[0])
    thread = threading.Thread(target=write)
    thread.start()
    found = {ring.read_text(0) for _ in range(500)}
    is_over.set()
    thread.join()
    assert found <= set(texts)


def test_after_an_interrupt_at_any_bytecode_later_waits_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloudload.system.activity.FIRST_REPORT_S", 0.0)
    monkeypatch.setattr("cloudload.system.activity.LOOK_EVERY_S", 0.001)
    kept = Wait(Reports(), "kept")

    def work() -> None:
        with kept, doing("a step"):
            pass

    work()
    monkeypatch.setattr(activity.state, "watcher", activity.Watcher())
    kept.is_watched = False
    visits = count_visits(work)
    for visit in list_edges(visits)[::2]:
        monkeypatch.setattr(activity.state, "watcher", activity.Watcher())
        kept.is_watched = False
        interrupt(work, visit)
        work()
        reports = Reports()
        with Wait(reports, "working"), doing("later"):
            assert soon(partial(reports.__contains__, "later")), visits[visit]
        assert set(reports) <= {"working", "later"}, visits[visit]
