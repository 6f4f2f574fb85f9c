"""A pool's threads end with the pool."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from cloudload.system.threads import DaemonThreadPool


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
