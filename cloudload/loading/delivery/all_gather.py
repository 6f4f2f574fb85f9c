"""All-gather among the processes of a job, in a tree of groups of at most 16 processes.

    level 1                [ 0 ····· 16 ····· 32 ]               the first process of each group
                             │        │         │
    level 0      [ 0 1 ··· 15 ] [ 16 ··· 31 ] [ 32 ··· 39 ]      consecutive processes

Arrays are gathered up the levels, and the result is broadcast down. A process connects to at most
15 others at each level, and a group of 16 is about the size at which a gather costs the least CPU
time (`benchmarks.scale.exchange`). For 10,000 processes, the tree needs 80,000 connections. A
single group would need 5·10⁷.

A thread gathers in the background, while the model trains.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from cloudload.errors import RanksDisagreeError
from cloudload.system import DaemonThreadPool, Ints, activity

MOST_MEMBERS = 16
CONNECT_S = 60.0
"""How long a process waits for the address of another. For a connection to that address, gloo waits
five times as long (`Pair::waitUntil` in gloo/transport/tcp/pair.cc)."""
_CLOSE_S = 1.0
_POLL_S = 0.2
_NAMED_PROCESSES = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_PER_PROCESS_S = 0.01, 0.5, 0.001
"""How long a process pauses before it asks the store again, which all processes ask."""


def wait_for_all(store: Any, rank: int, size: int, timeout_s: float) -> None:
    """Wait until all `size` processes have called this with the same store.

    `store` is a `torch.distributed.Store`, with keys that only these calls use. After `timeout_s`,
    raises a `RanksDisagreeError` that names missing processes. Raises `RuntimeError` if the store
    does not answer.
    """
    store.set(f"here/{rank}", "")
    if store.add("arrived", 1) == size:
        store.set("all", "")
    deadline, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    with activity.doing(lambda: f"waiting for {_name_missing(store, size)} to start iterating"):
        while not store.check(["all"]):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RanksDisagreeError(
                    f"{_name_missing(store, size)} did not start iterating within {timeout_s:,g} s "
                    "(exchange_timeout_s) of this rank. Look at the log of the first missing "
                    "process. All ranks must iterate over the loader together"
                )
            # `store.wait` would log two lines of torch at each of its timeouts
            time.sleep(min(left_s, pause_s))
            pause_s = min(2 * pause_s, max(_LONGEST_PAUSE_S, size * _PAUSE_PER_PROCESS_S))


def _name_missing(store: Any, size: int) -> str:
    """Name processes that have not arrived, such as "process 3 (of 0 to 7)"."""
    missing = list(itertools.islice(_find_missing(store, 0, size), _NAMED_PROCESSES))
    if not missing:
        return f"the last process (of 0 to {size - 1})"  # it has arrived in the meantime
    num_others = size - store.add("arrived", 0) - len(missing)
    names = ", ".join(map(str, missing))
    more = f", and {num_others} more" if num_others > 0 else ""
    return f"process{'es' if missing[1:] else ''} {names}{more} (of 0 to {size - 1})"


def _find_missing(store: Any, start: int, stop: int) -> Iterator[int]:
    """Yield the processes in [start, stop) that have not arrived. Bisects, to save requests."""
    if store.check([f"here/{rank}" for rank in range(start, stop)]):
        return
    if stop - start == 1:
        yield start
    else:
        middle = (start + stop) // 2
        yield from _find_missing(store, start, middle)
        yield from _find_missing(store, middle, stop)


class Gather:
    """Gathers arrays of equal size from `size` processes, which call its methods in the same order.

    `store` is a `torch.distributed.Store`, with keys that only this tree uses. The constructor
    connects the processes. It raises `RuntimeError` if a process does not publish its address
    within a minute, or does not connect within five minutes. A gather fails if it takes longer than
    `timeout_s`. After an error, this process closes its connections, so that processes that wait
    for this one also fail.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.size = size
        self._levels = [
            _Level(store, level, rank, size, timeout_s)
            for level in range(_count_levels(size))
            if rank % MOST_MEMBERS**level == 0
        ]
        self._thread = DaemonThreadPool(1, "cloudload-exchange")
        self._is_closing = threading.Event()
        self._end = weakref.finalize(self, _end_thread, self._is_closing, self._thread)

    def start(self, own: Ints) -> Callable[[], list[Ints]]:
        """Start to gather `own` (int64 [n], the same n on all processes).

        Returns a function that waits, and returns the arrays of all processes. It raises
        `RuntimeError` if a process ended, a connection broke, or the timeout passed.
        """
        return self._thread.submit(self._gather, own).result

    def _gather(self, own: Ints) -> list[Ints]:
        try:
            return self._climb(own)
        except RuntimeError as error:
            text = str(error)
        # a new error, because the traceback of the old one would keep the connections open
        self._levels = []
        raise RuntimeError(text)

    def _climb(self, own: Ints) -> list[Ints]:
        if not (levels := self._levels):
            raise RuntimeError("the connections are closed")
        gathered = own[None]
        for level in levels:
            gathered = level.gather(gathered, self._is_closing)
        for level in reversed(levels):
            if level.covers < self.size:
                if len(gathered) < self.size:
                    gathered = np.empty((self.size, len(own)), np.int64)
                level.broadcast(gathered, self._is_closing)
        return list(gathered)

    def close(self) -> None:
        """Close the connections. If a gather is still running, they close when it finishes."""
        self._levels = []
        self._end()


def _end_thread(is_closing: threading.Event, thread: DaemonThreadPool) -> None:
    is_closing.set()
    thread.close(_CLOSE_S)


def _wait_for(work: Any, is_closing: threading.Event) -> None:
    """Wait for an operation of gloo. Raises `RuntimeError` if it fails.

    Once `is_closing` is set, the thread sleeps between checks instead of waiting inside gloo. If
    the interpreter exits while a thread is inside gloo, the process aborts when gloo returns.
    """
    while not work.is_completed():
        if is_closing.is_set():
            time.sleep(_POLL_S)
            continue
        with contextlib.suppress(RuntimeError):  # a timeout; the last wait raises any error
            work.wait(timedelta(seconds=_POLL_S))
    work.wait()


def _count_levels(size: int) -> int:
    levels = 1
    while MOST_MEMBERS**levels < size:
        levels += 1
    return levels


class _Level:
    """A process's group at one level. Each member represents `16**level` processes."""

    def __init__(self, store: Any, level: int, rank: int, size: int, timeout_s: float) -> None:
        import torch.distributed as dist

        self._rows = MOST_MEMBERS**level
        self.covers = self._rows * MOST_MEMBERS
        """The number of processes that a full group of this level represents."""
        group, member = divmod(rank // self._rows, MOST_MEMBERS)
        self._below = min(self.covers, size - group * self.covers)
        self._members = -(-self._below // self._rows)
        if self._members == 1:
            return
        self._group: Any = dist.ProcessGroupGloo(
            dist.PrefixStore(f"{level}/{group}", store),
            member,
            self._members,
            timedelta(seconds=min(timeout_s, CONNECT_S)),
        )
        self._group._set_default_timeout(timedelta(seconds=timeout_s))

    def gather(self, own: Ints, is_closing: threading.Event) -> Ints:
        """Gather `own`, the arrays of the processes that this member represents.

        `own` is int64 [processes, n]. Returns the arrays of all processes that the group
        represents: int64 [processes, n].
        """
        import torch

        if self._members == 1:
            return own
        padded = np.zeros((self._rows, own.shape[1]), np.int64)
        padded[: len(own)] = own
        gathered = torch.empty((self._members, *padded.shape), dtype=torch.int64)
        work = self._group.allgather([gathered.unbind(0)], [torch.from_numpy(padded)])
        _wait_for(work, is_closing)
        rows: Ints = gathered.numpy().reshape(-1, own.shape[1])
        return rows[: self._below]

    def broadcast(self, values: Ints, is_closing: threading.Event) -> None:
        """Overwrite `values` (int64 [processes, n]) with those of the group's first member."""
        import torch

        if self._members > 1:
            _wait_for(self._group.broadcast([torch.from_numpy(values)]), is_closing)
