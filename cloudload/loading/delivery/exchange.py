"""The exchange: every rank learns the cursors of all lanes while the model trains.

    rank 0    batch t arrives ──► start ─────────────► finish ──► batch t is delivered
    rank 1      batch t arrives ──► start ───────────► finish ──► batch t is delivered

A rank's message for a window of rows contains the window's end, the rank's virtual index, the first
row that a lane could not fill, statistics, and the lanes' cursors and residues after each of the
rank's rows. All ranks gather all messages asynchronously, over a CPU process group that only the
loader uses. From the same messages, every rank computes the same cursor table and statistics, and
decides in the same way whether the lanes have ended. With token lengths, a message is only the
window's end (`progress.KnownLanes`).

A data-parallel rank may be several processes that share the work on its rows (tensor, pipeline,
context parallelism). Then several groups exchange in parallel. Each group has one process of every
rank, so it counts each rank's message once:

    process             0  1  2  3
    data-parallel rank  0  0  1  1          process 0 exchanges with 2, and 1 with 3
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.all_gather import Gather, wait_for_all
from cloudload.loading.delivery.rank_checks import advise_on_difference, differ_in_found_lengths
from cloudload.order import World
from cloudload.system import Ints, activity

_FIRST_CAPACITY, _RECENT = 1 << 8, 16
_opened: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
"""Counts the exchanges of each torch.distributed job. Each exchange has separate store keys."""
_LATE_RANK = (
    "waiting for another rank. The rows of this rank are ready. A rank that does not log this line "
    "is late. This rank raises an error after {:,g} s (exchange_timeout_s)"
)


class Exchange:
    """Carries messages between ranks. This base class is for a rank that does not communicate."""

    is_alone: ClassVar[bool] = True
    """Whether this rank receives only its own messages."""
    runs_ahead: ClassVar[bool] = False
    """Whether batches are fetched one step early, so that their exchange overlaps with training."""

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        """Start sending `message` (int64 [n], of any length) to all ranks.

        Returns a function that waits for the messages of all ranks and returns them. All ranks must
        start and finish their messages in the same order. The function raises `RanksDisagreeError`
        if the exchange fails, such as when another rank stops or does not answer in time.
        """
        return lambda: [message]

    def start_equal(self, message: Ints) -> Callable[[], list[Ints]]:
        """Do the same as `start` for a message that has the same size on all ranks."""
        return self.start(message)

    def start_number(self, number: int) -> Callable[[], list[int]]:
        """Start sending one number to all ranks.

        Returns a function that waits for the numbers of all ranks and returns them.
        """
        finish = self.start_equal(np.array([number], np.int64))
        return lambda: [int(message[0]) for message in finish()]

    def compare(self, facts: dict[str, Any]) -> bool:
        """Compare facts with all other processes, before the first message of an iteration.

        Returns False on all ranks if only some ranks found token lengths. The ranks must then
        compare again, without lengths. Raises `RanksDisagreeError` if other facts differ. Without
        communication, facts cannot differ.
        """
        return True

    def join(self, world: World) -> None:
        """Connect to the processes that exchange messages with this one, unless it has joined them.

        All processes must call it once their facts are equal, and before their first message.
        Raises `RanksDisagreeError` if ranks have different numbers of processes.
        """

    def close(self) -> None:
        """Close the connections."""


class _Messages:
    """Gathers messages of any length, in buffers of equal size.

    Each buffer also contains the size of its message. If a message does not fit, all ranks see
    this from its size, gather the rest of it, and use larger buffers for later messages.
    """

    def __init__(self, gather: Gather) -> None:
        self.gather, self._capacity = gather, _FIRST_CAPACITY
        self._longest = deque[int](maxlen=_RECENT)

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        """Start to gather the messages of all ranks; see `Exchange.start`."""
        capacity = self._capacity
        first = self._gather(np.concatenate([[len(message)], message[:capacity]]), capacity + 1)

        def finish() -> list[Ints]:
            parts = first()
            sizes = [int(part[0]) for part in parts]
            messages = [part[1 : 1 + size] for part, size in zip(parts, sizes, strict=True)]
            longest = max(sizes)
            self._longest.append(longest)
            if longest > capacity:
                rests = self._gather(message[capacity:], longest - capacity)()
                messages = [
                    np.concatenate([part, rest])[:size]
                    for part, rest, size in zip(messages, rests, sizes, strict=True)
                ]
            needed = max(self._longest)
            is_large = len(self._longest) == _RECENT and 2 * needed < self._capacity
            if longest > self._capacity or is_large:
                self._capacity = needed + needed // 4
            return messages

        return finish

    def _gather(self, numbers: Ints, size: int) -> Callable[[], list[Ints]]:
        own = np.zeros(size, np.int64)
        own[: len(numbers)] = numbers
        return self.gather.start(own)


class DistributedExchange(Exchange):
    """Exchanges messages between the processes of torch.distributed, over gloo connections.

    All processes must call the constructor and the methods in the same order. `compare` and `join`
    include all processes. Messages are exchanged only within the group of this process.
    """

    is_alone = False
    runs_ahead = True

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist, self._timeout_s = dist, timeout_s
        self._job = weakref.ref(dist.group.WORLD)
        rank, size = dist.get_rank(), dist.get_world_size()
        with self._explained():
            self._store = _open_store(dist)
            wait_for_all(self._store, rank, size, timeout_s)
            self._all = self._open(rank, size, "all")
        self._joined: _Messages | None = None
        self.processes = list(range(size))
        """The processes that exchange messages with each other, including this one."""

    def _open(self, rank: int, size: int, name: str) -> _Messages:
        with activity.doing("connecting to the other ranks"):
            store = self._dist.PrefixStore(name, self._store)
            return _Messages(Gather(store, rank, size, self._timeout_s))

    @property
    def _group(self) -> _Messages:
        assert self._joined is not None, "messages are only exchanged after join"
        return self._joined

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        with self._explained():
            return self._wait_for(self._group.start(message))

    def start_equal(self, message: Ints) -> Callable[[], list[Ints]]:
        with self._explained():  # needs no padded buffer, because all messages have the same size
            return self._wait_for(self._group.gather.start(message))

    def _wait_for(self, gathered: Callable[[], list[Ints]]) -> Callable[[], list[Ints]]:
        def finish() -> list[Ints]:
            with activity.doing(_LATE_RANK.format(self._timeout_s)), self._explained():
                return gathered()

        return finish

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of torch.distributed to `RanksDisagreeError`."""
        if not self._dist.is_initialized() or self._job() is not self._dist.group.WORLD:
            raise RanksDisagreeError(
                "the torch.distributed process group that the ranks used to communicate was "
                "destroyed. If you created a new one, call set_world on every rank"
            )
        try:
            yield
        except RuntimeError as error:
            raise RanksDisagreeError(
                "the exchange between ranks failed, because another rank stopped, is out of step, "
                f"or did not answer within {self._timeout_s:,g} s (exchange_timeout_s), or because "
                "the network failed. Look at the log of the first rank that failed, and resume "
                "from the last state. To continue without that rank, call set_world on every "
                "remaining rank"
            ) from error

    def compare(self, facts: dict[str, Any]) -> bool:
        everybody = self._exchange_objects(facts)
        values = {name: [other.get(name) for other in everybody] for name in facts}
        differing = {
            name: found for name, found in values.items() if any(each != found[0] for each in found)
        }
        if differ_in_found_lengths(differing):
            return False
        if differing:
            lines = [f"  {name}: {found}" for name, found in differing.items()]
            raise RanksDisagreeError(
                "these values must be the same on all ranks of a run, but differ (one value per "
                "process):\n" + "\n".join(lines) + f"\n{advise_on_difference([*differing])}"
            )
        return True

    def join(self, world: World) -> None:
        if self._joined is not None:
            return
        ranks = self._exchange_objects({"dp_rank": world.rank})
        groups = group_processes([other["dp_rank"] for other in ranks], world.size)
        if len(groups) == 1:
            self._joined = self._all
            return
        own = self._dist.get_rank()
        [(group, self.processes)] = [each for each in enumerate(groups) if own in each[1]]
        with self._explained():
            index, size = self.processes.index(own), len(self.processes)
            self._joined = self._open(index, size, f"group/{group}")

    def _exchange_objects(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange JSON objects with all processes."""
        text = json.dumps(own).encode()
        text += b" " * (-len(text) % np.dtype(np.int64).itemsize)
        with activity.doing("waiting for the other ranks to start iterating"), self._explained():
            messages = self._all.start(np.frombuffer(text, np.int64))()
        return [json.loads(message.tobytes()) for message in messages]

    def close(self) -> None:
        for messages in {self._joined or self._all, self._all}:
            messages.gather.close()


def _open_store(dist: Any) -> Any:
    """Return a store for the next exchange between the processes of torch.distributed."""
    job = dist.group.WORLD
    count = _opened[job] = _opened.get(job, 0) + 1
    return dist.PrefixStore(f"cloudload/{count}", dist.distributed_c10d._get_default_store())


def group_processes(ranks: Sequence[int], world_size: int) -> list[list[int]]:
    """Group the processes that exchange messages: group k has the k-th process of every rank.

    `ranks` has the data-parallel rank of each process. Raises `RanksDisagreeError` if ranks have
    different numbers of processes.
    """
    counts = np.bincount(ranks, minlength=world_size)
    if (counts != counts[0]).any():
        raise RanksDisagreeError(
            f"the {len(ranks)} processes cannot be grouped evenly, because the data-parallel ranks "
            f"0 to {world_size - 1} have {counts.tolist()} processes. Give each rank the same "
            "number of processes by passing device_mesh, or the correct dp_rank and dp_world_size, "
            "in every process"
        )
    groups: list[list[int]] = np.argsort(ranks, kind="stable").reshape(world_size, -1).T.tolist()
    return groups
