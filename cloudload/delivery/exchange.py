"""The exchange: every rank learns the cursors of all lanes while the model trains.

    rank 0    batch t arrives ──► start ─────────────► finish ──► batch t is handed out
    rank 1      batch t arrives ──► start ───────────► finish ──► batch t is handed out

A rank's message for a window of rows contains the window's end, the rank's virtual index, the first
row that a lane could not fill, statistics, and the lanes' cursors and residues after each of the
rank's rows. All ranks gather all messages asynchronously, over a CPU process group that only the
loader uses. From the same messages, every rank computes the same cursor table and statistics, and
decides in the same way whether the lanes have ended. With token lengths, a message is only the
window's end (`known_lanes`).

A data-parallel rank may be several processes that share the work on its rows (tensor, pipeline,
context parallelism). Then several groups exchange in parallel. Each group has one process of every
rank, so it counts each rank's message once:

    process             0  1  2  3
    data-parallel rank  0  0  1  1          process 0 exchanges with 2, and 1 with 3
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from cloudload.arrays import Ints
from cloudload.delivery.agreement import advise_on_difference, differ_in_found_lengths
from cloudload.delivery.world import World
from cloudload.errors import RanksDisagreeError
from cloudload.system.activity import doing

_FIRST_CAPACITY = 1 << 10
_LATE_RANK = (
    "waiting for another rank. The rows of this rank are ready. The late rank is one that does not "
    "log this line. Gives up after {:,g} s (exchange_timeout_s)"
)


class Exchange:
    """Carries messages between ranks. This base class is for a rank without communication."""

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

    def start_number(self, number: int) -> Callable[[], list[int]]:
        """Start sending one number to all ranks, like a message; returns the numbers of all."""
        finish = self.start(np.array([number], np.int64))
        return lambda: [int(message[0]) for message in finish()]

    def compare(self, facts: dict[str, Any], world: World) -> bool:
        """Compare facts with all other processes, before the first message of an iteration.

        Returns False, on all ranks, if only some found token lengths. They must then compare again,
        without lengths. Raises `RanksDisagreeError` if other facts differ, or if ranks have
        different numbers of processes. Without communication, facts cannot differ.
        """
        return True

    def close(self) -> None:
        """Close the connections."""


class DistributedExchange(Exchange):
    """Exchanges messages over torch.distributed, in separate gloo groups.

    All processes must call the constructor and the methods in the same order. They all compare
    their facts, but each sends messages only within its group. Messages are gathered in buffers of
    equal size. If one does not fit, all ranks see this from the sizes, gather the rest, and use
    larger buffers for later messages.
    """

    is_alone = False
    runs_ahead = True

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._timeout = timedelta(seconds=timeout_s)
        with doing("waiting for the other ranks to start iterating"), self._explained():
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

    def start_number(self, number: int) -> Callable[[], list[int]]:
        finish = self._gather(np.array([number], np.int64), 1)  # needs no message buffer
        return lambda: [int(numbers[0]) for numbers in finish()]

    def _gather(self, numbers: Ints, size: int) -> Callable[[], list[Ints]]:
        import torch

        own = torch.zeros(size, dtype=torch.int64)
        own.numpy()[: len(numbers)] = numbers
        gathered = [torch.empty_like(own) for _ in range(self._group.size())]
        with self._explained():
            work = self._dist.all_gather(gathered, own, group=self._group, async_op=True)

        def finish() -> list[Ints]:
            with doing(_LATE_RANK.format(self._timeout.total_seconds())), self._explained():
                work.wait()
            return [tensor.numpy() for tensor in gathered]

        return finish

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the errors of torch.distributed as `RanksDisagreeError`."""
        try:
            yield
        except RuntimeError as error:
            raise RanksDisagreeError(
                "the exchange between ranks failed: another rank has stopped, is out of step, "
                f"or did not answer within {self._timeout.total_seconds():,g} s, or the "
                "network failed. Look at the first rank that failed, and resume from the last "
                "state. To continue on the other ranks, call set_world on every rank"
            ) from error
        except ValueError as error:
            raise RanksDisagreeError(
                "the process group of the exchange between ranks was destroyed. If there is a new "
                "one, call set_world on every rank"
            ) from error

    def compare(self, facts: dict[str, Any], world: World) -> bool:
        everybody: list[dict[str, Any]] = [{}] * self._all.size()
        with doing("waiting for the other ranks to start iterating"), self._explained():
            facts_of_rank = {**facts, "dp_rank": world.rank}
            self._dist.all_gather_object(everybody, facts_of_rank, group=self._all)
        values = {name: [other.get(name) for other in everybody] for name in facts}
        differing = {
            name: found for name, found in values.items() if any(each != found[0] for each in found)
        }
        if differ_in_found_lengths(differing):
            return False
        if differing:
            lines = [f"  {name}: {found}" for name, found in differing.items()]
            raise RanksDisagreeError(
                "the ranks of one run must agree on these values, which differ (one per process):\n"
                + "\n".join(lines)
                + f"\n{advise_on_difference([*differing])}"
            )
        groups = group_processes([other["dp_rank"] for other in everybody], world.size)
        if len(groups) > 1 and self._group is self._all:
            # not with use_local_synchronization: older versions of torch then reuse the name of a
            # closed group, and connect to addresses that no longer work
            self._group, _ = self._dist.new_subgroups_by_enumeration(
                groups, timeout=self._timeout, backend="gloo"
            )
        return True

    def close(self) -> None:
        if self._all is not None and self._dist.is_initialized():
            for group in {self._all, self._group}:
                # the program may have destroyed all groups in order to form new ones
                with contextlib.suppress(ValueError):
                    self._dist.destroy_process_group(group)
        self._all = self._group = None


def group_processes(ranks: Sequence[int], world_size: int) -> list[list[int]]:
    """Group the processes that exchange messages: group k has the k-th process of every rank.

    `ranks` has the data-parallel rank of each process. Raises `RanksDisagreeError` if ranks have
    different numbers of processes.
    """
    numbers = np.bincount(ranks, minlength=world_size)
    if (numbers != numbers[0]).any():
        raise RanksDisagreeError(
            f"the {len(ranks)} processes cannot be grouped evenly: the data-parallel ranks 0 to "
            f"{world_size - 1} have {numbers.tolist()} processes. Give each rank the same number: "
            "pass device_mesh, or the right dp_rank and dp_world_size, in every process"
        )
    groups: list[list[int]] = np.argsort(ranks, kind="stable").reshape(world_size, -1).T.tolist()
    return groups
