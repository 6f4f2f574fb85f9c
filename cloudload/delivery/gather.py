"""All-gather among the processes of a job, in a tree of groups of at most 16 processes.

    level 1                [ 0 ····· 16 ····· 32 ]               the first process of each group
                             │        │         │
    level 0      [ 0 1 ··· 15 ] [ 16 ··· 31 ] [ 32 ··· 39 ]      consecutive processes

Arrays are gathered up the levels, and the result is broadcast down. A process connects to at most
15 others at each level, and a group of 16 is about the size at which a gather costs the least CPU
time (`benchmarks.exchange`). One group of all processes would need 5·10⁷ connections at 10,000
processes, where the tree needs 80,000.

Up to 16 processes form one group, without a thread. In a larger tree, a thread carries the arrays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.errors import RanksDisagreeError
from cloudload.system.activity import doing
from cloudload.system.daemon_threads import DaemonThreadPool

_MOST_MEMBERS = 16
_CONNECT_S = 60.0
_CLOSE_S = 1.0
_NAMED_PROCESSES = 8
_LOOK_EVERY_S = 5.0


def wait_for_all(store: Any, rank: int, size: int, timeout_s: float) -> None:
    """Wait until all `size` processes have called this with the same store.

    `store` is a `torch.distributed.Store`, with keys that only these calls use. Raises
    `RanksDisagreeError`, which names processes that are missing, after `timeout_s`, and
    `RuntimeError` if the store does not answer.
    """
    store.set(f"here/{rank}", "")
    if store.add("arrived", 1) == size:
        store.set("all", "")
    deadline = time.monotonic() + timeout_s
    with doing(lambda: f"waiting for {_name_missing(store, size)} to start iterating"):
        while not store.check(["all"]):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RanksDisagreeError(
                    f"{_name_missing(store, size)} did not start iterating within {timeout_s:,g} s "
                    "(exchange_timeout_s) of this rank. Look at the log of the first that is "
                    "missing. All ranks must iterate over the loader together"
                )
            with contextlib.suppress(RuntimeError):  # not yet; `check` raises if the store is gone
                store.wait(["all"], timedelta(seconds=min(left_s, _LOOK_EVERY_S)))


def _name_missing(store: Any, size: int) -> str:
    """Name processes that have not arrived, such as "process 3 (of 0 to 7)"."""
    missing = [rank for rank in range(size) if not store.check([f"here/{rank}"])]
    names = ", ".join(map(str, missing[:_NAMED_PROCESSES]))
    more = f", and {len(missing) - _NAMED_PROCESSES} more" if missing[_NAMED_PROCESSES:] else ""
    return f"process{'es' if missing[1:] else ''} {names}{more} (of 0 to {size - 1})"


class Gather:
    """Gathers arrays of equal size from `size` processes, which call its methods in one order.

    `store` is a `torch.distributed.Store`, with keys that only this tree uses. The constructor
    connects the processes. It raises `RuntimeError` if one does not connect within a minute. An
    array that is not gathered within `timeout_s` is an error, too.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.size = size
        self._levels = [
            _Level(store, level, rank, size, timeout_s)
            for level in range(_count_levels(size))
            if rank % _MOST_MEMBERS**level == 0
        ]
        self._has_levels = size > _MOST_MEMBERS
        self._thread = DaemonThreadPool(1, "cloudload-exchange")

    def start(self, own: Ints) -> Callable[[], list[Ints]]:
        """Start to gather `own` (int64 [n], the same n on all processes).

        Returns a function that waits, and returns the arrays of all processes. Both raise
        `RuntimeError` if a process ended, a connection broke, or the time is over.
        """
        if self._has_levels:
            return self._thread.submit(self._gather, own).result
        finish = self._levels[0].gather(own[None])
        return lambda: list(finish())

    def _gather(self, own: Ints) -> list[Ints]:
        gathered = own[None]
        try:
            for level in self._levels:
                gathered = level.gather(gathered)()
            for level in reversed(self._levels):
                if level.covers < self.size:
                    if len(gathered) < self.size:
                        gathered = np.empty((self.size, len(own)), np.int64)
                    level.broadcast(gathered)
        except BaseException:
            # so that the processes that wait for this one see its connections close
            self._levels.clear()
            raise
        return list(gathered)

    def close(self) -> None:
        """Close the connections."""
        self._thread.close(_CLOSE_S)
        self._levels.clear()


def _count_levels(size: int) -> int:
    levels = 1
    while _MOST_MEMBERS**levels < size:
        levels += 1
    return levels


class _Level:
    """One process's group at one level: each member stands for `16**level` processes."""

    def __init__(self, store: Any, level: int, rank: int, size: int, timeout_s: float) -> None:
        import torch.distributed as dist

        self._rows = _MOST_MEMBERS**level
        self.covers = self._rows * _MOST_MEMBERS
        """The processes below a full group of this level."""
        group, member = divmod(rank // self._rows, _MOST_MEMBERS)
        self._below = min(self.covers, size - group * self.covers)
        self._members = -(-self._below // self._rows)
        if self._members == 1:
            return
        self._group: Any = dist.ProcessGroupGloo(
            dist.PrefixStore(f"{level}/{group}", store),
            member,
            self._members,
            timedelta(seconds=min(timeout_s, _CONNECT_S)),
        )
        self._group._set_default_timeout(timedelta(seconds=timeout_s))

    def gather(self, own: Ints) -> Callable[[], Ints]:
        """Start to gather `own` (int64 [processes below this member, n]).

        The function that it returns waits, and returns int64 [processes below the group, n].
        """
        import torch

        if self._members == 1:
            return lambda: own
        padded = np.zeros((self._rows, own.shape[1]), np.int64)
        padded[: len(own)] = own
        gathered = torch.empty((self._members, *padded.shape), dtype=torch.int64)
        parts: Sequence[torch.Tensor] = gathered.unbind(0)
        work = self._group.allgather([parts], [torch.from_numpy(padded)])

        def finish() -> Ints:
            work.wait()
            rows: Ints = gathered.numpy().reshape(-1, own.shape[1])
            return rows[: self._below]

        return finish

    def broadcast(self, values: Ints) -> None:
        """Overwrite `values` (int64 [processes, n]) with those of the group's first member."""
        import torch

        if self._members > 1:
            self._group.broadcast([torch.from_numpy(values)]).wait()
