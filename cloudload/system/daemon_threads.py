"""Threads that work through calls, and keep no process alive that wants to end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Daemons:
    """Like a `ThreadPoolExecutor`, whose threads an interpreter on its way out would wait for; they
    start with the first call."""

    def __init__(self, number: int, name: str) -> None:
        self._number, self._name = number, name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call `function` in a thread, after what was submitted before."""
        future: Future[T] = Future()
        self._calls.put((future, function, arguments))
        if len(self._threads) < self._number:
            self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, timeout_s: float) -> None:
        """Call nothing more, and wait for the calls in hand, but no longer than that."""
        while not self._calls.empty():
            if (call := self._calls.get()) is not None:
                call[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function, arguments  # nothing is kept alive while waiting
