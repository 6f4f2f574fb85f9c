"""The exchange: how every rank comes to know every lane's cursor, off the critical path.

    rank 0    batch t arrives ──► start ─────────────► finish ──► batch t is handed out
    rank 1      batch t arrives ──► start ───────────► finish ──► batch t is handed out

A rank's message for a window of batches is its lanes' cursors after each of its rows, its row
count, what it counted, and the first row that a lane could not fill. All ranks gather all messages,
asynchronously, over a CPU process group of the loader's own. What follows from the messages is the
same on every rank: the cursor table, the statistics, and whether the lanes have ended.

A data-parallel rank may be several processes, which share the work on its rows (tensor, pipeline,
context parallelism). Then several groups exchange side by side, each with one process of every
rank, so that each counts a rank's message once:

    process             0  1  2  3
    data-parallel rank  0  0  1  1          process 0 exchanges with 2, and 1 with 3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from cloudload.arrays import Ints
from cloudload.delivery.world import World
from cloudload.errors import RanksDisagreeError

_FIRST_CAPACITY = 1 << 10


class Exchange:
    """Carries messages between ranks. This one serves a rank that is alone."""

    is_alone: ClassVar[bool] = True
    runs_ahead: ClassVar[bool] = False
    """Whether a batch is fetched one batch early, so that its exchange is done when it is asked
    for."""

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        """Send `message` (int64 [n], of any length); the call returned waits for all ranks'
        messages.

        All ranks start and finish their messages in the same order. Raises `RanksDisagreeError`
        where another rank has stopped.
        """
        return lambda: [message]

    def compare(self, facts: dict[str, Any], world: World) -> None:
        """Compare facts with the other ranks; called before the first message.

        Raises `RanksDisagreeError` where facts differ, or where the ranks are not the whole world.
        """

    def close(self) -> None:
        """Close the connections."""


class DistributedExchange(Exchange):
    """Over torch.distributed, in gloo groups of its own. Making one, and each of its calls, takes
    all processes.

    All processes compare their facts; messages stay within the group of this one. They travel in
    buffers of equal size. Where one does not fit, all ranks see so from the sizes, gather the rest
    at once, and take larger buffers from then on.
    """

    is_alone = False
    runs_ahead = True

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._timeout = timedelta(seconds=timeout_s)
        self._all: Any = dist.new_group(backend="gloo", timeout=self._timeout)
        self._group: Any = self._all
        self._capacity = _FIRST_CAPACITY

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        capacity = self._capacity
        first = self._gather(np.concatenate([[len(message)], message[:capacity]]), capacity + 1)

        def finish() -> list[Ints]:
            parts = first()
            sizes = [int(part[0]) for part in parts]
            messages = [part[1 : 1 + size] for part, size in zip(parts, sizes, strict=True)]
            longest = max(sizes)
            if longest > capacity:
                self._capacity = max(self._capacity, longest + longest // 4)
                rests = self._gather(message[capacity:], longest - capacity)()
                messages = [
                    np.concatenate([part, rest])[:size]
                    for part, rest, size in zip(messages, rests, sizes, strict=True)
                ]
            return messages

        return finish

    def _gather(self, numbers: Ints, size: int) -> Callable[[], list[Ints]]:
        import torch

        own = torch.zeros(size, dtype=torch.int64)
        own.numpy()[: len(numbers)] = numbers
        gathered = [torch.empty_like(own) for _ in range(self._group.size())]
        work = self._dist.all_gather(gathered, own, group=self._group, async_op=True)

        def finish() -> list[Ints]:
            try:
                work.wait()
            except RuntimeError as error:
                raise RanksDisagreeError(
                    "the exchange between ranks broke off: another rank has "
                    "stopped or is out of step. "
                    "Look at the first rank that failed, and resume from the last state"
                ) from error
            return [tensor.numpy() for tensor in gathered]

        return finish

    def compare(self, facts: dict[str, Any], world: World) -> None:
        everybody: list[dict[str, Any]] = [{}] * self._all.size()
        self._dist.all_gather_object(everybody, {**facts, "dp_rank": world.rank}, group=self._all)
        differing = [
            name
            for name in facts
            if any(other.get(name) != everybody[0].get(name) for other in everybody)
        ]
        if differing:
            lines = [f"  {name}: {[other.get(name) for other in everybody]}" for name in differing]
            raise RanksDisagreeError(
                "the ranks would not read one stream of rows; by process, these differ:\n"
                + "\n".join(lines)
                + "\nGive every rank the same config, and load the same state on each"
            )
        groups = group_processes([other["dp_rank"] for other in everybody], world.size)
        if len(groups) > 1 and self._group is self._all:
            # use_local_synchronization would reuse, in older torch, the name of a closed group, and
            # with it dead addresses
            self._group, _ = self._dist.new_subgroups_by_enumeration(
                groups, timeout=self._timeout, backend="gloo"
            )

    def close(self) -> None:
        if self._all is not None and self._dist.is_initialized():
            for group in {self._all, self._group}:
                self._dist.destroy_process_group(group)
        self._all = self._group = None


def group_processes(ranks: Sequence[int], world_size: int) -> list[list[int]]:
    """Which processes exchange with each other, of processes with these data-parallel ranks: the
    k-th one of every rank."""
    numbers = np.bincount(ranks, minlength=world_size)
    if (numbers != numbers[0]).any():
        raise RanksDisagreeError(
            f"the {len(ranks)} processes cannot be shared out evenly: the data-parallel ranks 0 to "
            f"{world_size - 1} have "
            f"{numbers.tolist()} processes. Give each rank as many, by device_mesh, or by dp_rank "
            "and dp_world_size"
        )
    groups: list[list[int]] = np.argsort(ranks, kind="stable").reshape(world_size, -1).T.tolist()
    return groups
