"""Daemon threads, spare objects, and garbage collections do not hold up a process."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.system.machine import freeze_objects, paused_collection
from cloudload.system.threads import DaemonThreadPool, Spares, map_in_order


def run_calls(pool: DaemonThreadPool) -> list[threading.Thread]:
    """Run two calls at the same time, and return the pool's threads."""
    before, barrier = set(threading.enumerate()), threading.Barrier(2)
    calls = [pool.submit(barrier.wait) for _ in range(2)]
    assert {call.result() for call in calls} == {0, 1}
    return list(set(threading.enumerate()) - before)


def test_the_threads_of_a_pool_end_when_it_is_forgotten() -> None:
    pool = DaemonThreadPool(2, "test")
    threads = run_calls(pool)
    assert len(threads) == 2
    del pool
    gc.collect()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_call_whose_thread_cannot_start_is_refused_and_a_later_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = DaemonThreadPool(1, "test")

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            pool.submit(int, "1")
    assert pool.submit(int, "2").result(60) == 2
    pool.close(1.0)


@given(st.lists(st.integers()), st.integers(1, 4), st.integers(0, 5))
def test_results_come_in_the_order_of_the_items(items: list[int], threads: int, ahead: int) -> None:
    begun = list[int]()
    results = map_in_order(lambda item: 2 * item, note(items, begun), threads, "test", ahead=ahead)
    for index, result in enumerate(results):
        assert result == 2 * items[index]
        assert len(begun) <= index + 1 + ahead  # an item is not taken before it is needed
    assert begun == items


def note(items: Iterable[int], begun: list[int]) -> Iterator[int]:
    for item in items:
        begun.append(item)
        yield item


def test_the_first_error_in_order_ends_a_map_and_the_calls_that_wait_are_not_made() -> None:
    made, is_released = list[int](), threading.Event()

    def call(item: int) -> int:
        made.append(item)
        if item == 1:
            raise ValueError("item 1")
        if item > 1:
            is_released.wait(60)
        return item

    results = map_in_order(call, range(20), 2, "test", ahead=10, close_s=0.0)
    assert next(results) == 0
    with pytest.raises(ValueError, match="item 1"):
        next(results)
    is_released.set()
    assert len(made) <= 4
    assert list(results) == []


ABANDONED = """
import gc, threading
from contextlib import nullcontext
from cloudload.system.threads import map_in_order
gc.disable()
cycle = {"results": map_in_order(str, iter(int, 1), 4, "test")}
cycle["itself"] = cycle
assert next(cycle["results"]) == "0"
del cycle
# until Python 3.12, `Thread.start` creates objects while it holds this lock, so that a garbage
# collection may begin there
with getattr(threading, "_shutdown_locks_lock", nullcontext()):
    gc.collect()
    assert not any(type(each).__name__ == "generator" for each in gc.get_objects())
print("collected")
"""


def test_an_abandoned_map_is_collected_wherever_a_collection_begins() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "collected\n", done.stderr


def test_a_pool_may_be_closed_by_one_of_its_threads() -> None:
    pool = DaemonThreadPool(2, "test")
    pool.submit(int, "1").result(60)
    assert pool.submit(pool.close, 1.0).result(60) is None


# ---------------------------------------------------------------- spares


class Tool:
    """An object that notes whether it is used or closed."""

    def __init__(self) -> None:
        self.is_used = self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def use(spares: Spares[Tool], barrier: threading.Barrier) -> Tool:
    with spares.lend() as tool:
        assert not tool.is_used
        tool.is_used = True
        barrier.wait(10)
        tool.is_used = False
        return tool


def test_callers_at_the_same_time_have_different_objects_which_are_used_again() -> None:
    spares, barrier = Spares(Tool, Tool.close), threading.Barrier(3)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            found = set(threads.map(lambda _: use(spares, barrier), range(3)))
            assert len(found) == 3
    with spares.lend() as outer, spares.lend() as inner:
        assert {outer, inner} < found


def test_after_an_exception_an_object_is_closed_and_not_lent_again() -> None:
    spares = Spares(Tool, Tool.close)
    with pytest.raises(KeyboardInterrupt), spares.lend() as left:
        raise KeyboardInterrupt
    with spares.lend() as other:
        pass
    assert left.is_closed
    assert other is not left
    assert not other.is_closed


def test_close_closes_idle_objects_and_lend_makes_new_ones() -> None:
    spares = Spares(Tool, Tool.close)
    with spares.lend() as first:
        spares.close()
        assert not first.is_closed
    spares.close()
    assert first.is_closed
    with spares.lend() as second:
        assert second is not first


def test_a_pickle_has_no_objects() -> None:
    spares = Spares(Tool, Tool.close)
    with spares.lend() as own:
        pass
    with pickle.loads(pickle.dumps(spares)).lend() as other:
        assert other is not own


# ---------------------------------------------------------------- garbage collections


def fail_without_collection() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise KeyError


def test_the_collector_is_off_in_the_block_and_on_after_it_even_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail_without_collection()
    assert gc.isenabled()


def exit_with_state() -> None:
    freeze_objects()
    sys.exit(not gc.isenabled())


def test_a_process_that_is_forked_in_a_pause_ends_the_pause() -> None:
    process = multiprocessing.get_context("fork").Process(target=exit_with_state)
    with paused_collection():
        process.start()
    process.join()
    assert process.exitcode == 0


def test_a_program_that_disabled_the_collector_keeps_it_disabled() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
