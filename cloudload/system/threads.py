"""A thread pool that never delays the exit of a process, and objects for one caller at a time.

    spares = Spares(open_reader, close_reader)
    with spares.lend() as reader:      a spare reader, or a new one
        reader.read(…)                 meanwhile, threads and signal handlers get others

After an exception, the object is closed, because it may be in the midst of a change.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")

_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_Calls = queue.SimpleQueue[_Call | None]


class DaemonThreadPool:
    """A pool of daemon threads, for which the interpreter does not wait at exit.

    Each of the first `num_threads` calls to `submit` starts a thread. The threads end after
    `close`, or after the pool is garbage-collected.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads, self._name = num_threads, name
        self._calls: _Calls = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._calls, self._threads).atexit = False

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a call in a thread, and return its future. Calls start in the order submitted."""
        future: Future[T] = Future()
        if len(self._threads) < self._num_threads:
            self._threads.append(_start(self._calls, self._name))
        self._calls.put((future, function, arguments))  # only now, because a start may fail
        return future

    def close(self, timeout_s: float) -> None:
        """Cancel calls that have not started, and wait at most `timeout_s` for running calls."""
        with suppress(queue.Empty):
            while True:  # not until it is empty, because a thread may take the last call meanwhile
                if (call := self._calls.get_nowait()) is not None:
                    call[0].cancel()
        _end(self._calls, self._threads)
        # a garbage collection in one of the threads may close the pool
        others = [each for each in self._threads if each is not threading.current_thread()]
        for thread in others:
            thread.join(timeout_s / len(others))


def _start(calls: _Calls, name: str) -> threading.Thread:
    """Start a thread. It has the calls but not the pool, so that the pool can be collected."""
    thread = threading.Thread(target=_work, args=(calls,), name=name, daemon=True)
    thread.start()
    return thread


def _work(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        if call[0].set_running_or_notify_cancel():
            settle_future(*call)
        del call  # an idle thread must not keep arguments or results alive


def _end(calls: _Calls, threads: Sequence[threading.Thread]) -> None:
    """Let the threads of a pool end after the calls submitted so far."""
    for _ in threads:
        calls.put(None)


def await_unless_failed(future: Future[T] | None) -> T | None:
    """Wait for a call's result. Returns None if it has failed already.

    The cause may be over by now, so the caller should make the call again.
    """
    if future is None or (future.done() and future.exception() is not None):
        return None
    return future.result()


def settle_future(
    future: Future[T], function: Callable[..., T], arguments: tuple[Any, ...] = ()
) -> None:
    """Call `function`, and set its result or its exception on `future`."""
    try:
        result = function(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    num_threads: int,
    name: str,
    *,
    ahead: int | None = None,
    close_s: float = 1.0,
) -> Iterator[Result]:
    """Yield the result of `function` for each item, in order. Threads make the calls.

    While one result is awaited, up to `ahead` further calls are already submitted; by default,
    twice as many as threads. Raises the error of the first item whose call fails. At an error, and
    if the iterator is dropped, the other calls are cancelled, and those that run are awaited for at
    most `close_s` seconds.

    Unlike a `ThreadPoolExecutor` within a generator, the iterator may be garbage-collected in any
    thread: it takes no lock that this thread may hold already.
    """
    threads = DaemonThreadPool(num_threads, name)
    ahead = 2 * num_threads if ahead is None else ahead
    waiting = deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.close(close_s)


class Spares(Generic[T]):
    """Lends objects that `make` creates. Can be pickled if both functions can, without objects."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], object]) -> None:
        self._make, self._close = make, close
        self._idle: list[T] = []
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return Spares, (self._make, self._close)

    @contextmanager
    def lend(self) -> Iterator[T]:
        """Lend an object for the `with` block, which is then its only user."""
        lent = self._take()
        lent = self._make() if lent is None else lent
        try:
            yield lent
        except BaseException:
            self._close(lent)
            raise
        self._idle.append(lent)

    def _take(self) -> T | None:
        if self._process != os.getpid():  # a fork copies objects, but not their threads
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close the objects that nobody uses. `lend` still works, and makes new ones."""
        while (spare := self._take()) is not None:
            self._close(spare)
