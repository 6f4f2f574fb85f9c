"""The exchange: how every rank comes to know every lane's cursor, off the critical path.

    rank 0    batch t arrives ──► start ─────────────► finish ──► batch t is handed out
    rank 1      batch t arrives ──► start ───────────► finish ──► batch t is handed out

A rank's message for a window of batches is its own cursors after each of its rows, its row count, and whether it had run dry.
All ranks gather all messages, asynchronously, over a CPU process group of the loader's own. What follows from the messages is
the same on every rank: the cursor table, and whether the data has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from cloudload.errors import RanksDisagreeError
from cloudload.lanes import Ints, World, rank_rows
from cloudload.state import Position

_HEADER = 3


class Exchange(Protocol):
    """Carries the messages of the ranks."""

    def start(self, message: Ints) -> Callable[[], Ints]:
        """Send `message` (int64 [n]); the call returned waits for those of all ranks (int64 [ranks, n])."""
        ...

    def compare(self, facts: dict[str, Any], world: World) -> None:
        """Raises `RanksDisagreeError` where ranks do not share the same facts, or do not make up the whole world."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...


class NoExchange:
    """A rank on its own."""

    def start(self, message: Ints) -> Callable[[], Ints]:
        return lambda: message[None]

    def compare(self, facts: dict[str, Any], world: World) -> None:
        pass

    def close(self) -> None:
        pass


class DistributedExchange:
    """Over torch.distributed, in a gloo group of its own. Making one, and each of its calls, takes all ranks."""

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._size = dist.get_world_size()

    def start(self, message: Ints) -> Callable[[], Ints]:
        import torch

        own = torch.from_numpy(np.ascontiguousarray(message))
        gathered = [torch.empty_like(own) for _ in range(self._size)]
        work = self._dist.all_gather(gathered, own, group=self._group, async_op=True)

        def finish() -> Ints:
            try:
                work.wait()
            except RuntimeError as error:
                raise RanksDisagreeError(
                    f"the exchange between ranks broke off: another rank has stopped or is out of step ({error}). "
                    "Look at the first rank that failed, and resume from the last state"
                ) from error
            return np.stack([tensor.numpy() for tensor in gathered])

        return finish

    def compare(self, facts: dict[str, Any], world: World) -> None:
        everybody: list[dict[str, Any]] = [{}] * self._size
        self._dist.all_gather_object(everybody, {**facts, "dp_rank": world.rank}, group=self._group)
        ranks = [other["dp_rank"] for other in everybody]
        if set(ranks) != set(range(world.size)):
            raise RanksDisagreeError(
                f"the {self._size} processes are the data-parallel ranks {ranks}, but the world has {world.size}. "
                "Every data-parallel rank needs a process"
            )
        differing = [name for name in facts if any(other.get(name) != everybody[0].get(name) for other in everybody)]
        if differing:
            lines = [f"  {name}: {[other.get(name) for other in everybody]}" for name in differing]
            raise RanksDisagreeError(
                "the ranks would not read one stream of rows; by rank, these differ:\n"
                + "\n".join(lines)
                + "\nGive every rank the same config, and load the same state on each"
            )

    def close(self) -> None:
        if self._group is not None and self._dist.is_initialized():
            self._dist.destroy_process_group(self._group)
        self._group = None


@dataclass(frozen=True)
class Window:
    """The rows `start ≤ row < stop` that one exchange is about."""

    start: int
    stop: int
    num_lanes: int
    world_size: int

    @property
    def rows_per_rank(self) -> int:
        """The most rows of one rank."""
        return -(-(self.stop - self.start) // self.world_size)

    def message(self, index: int, cursors: Ints, *, was_dry: bool) -> Ints:
        """The message of the rank of virtual index `index`, whose cursors after its rows are int64 [rows, 2]."""
        message = np.zeros(_HEADER + 2 * self.rows_per_rank, np.int64)
        message[:_HEADER] = self.stop, index, was_dry
        message[_HEADER : _HEADER + cursors.size] = cursors.ravel()
        return message

    def apply(self, messages: Ints, cursors: Ints) -> tuple[Position, bool]:
        """The position after the window, and whether every rank was dry before its last batch."""
        stops = messages[:, 0].tolist()
        if any(stop != self.stop for stop in stops):
            raise RanksDisagreeError(
                f"the ranks are out of step: after this batch their rows are {stops}. "
                "Every rank must take the same number of batches"
            )
        table = cursors.copy()
        for message in messages:
            rows = np.asarray(rank_rows(self.start, self.stop, int(message[1]), self.world_size), np.int64)
            # where a lane has several rows in the window, the last one counts
            table[rows % self.num_lanes] = message[_HEADER : _HEADER + 2 * len(rows)].reshape(-1, 2)
        return Position(self.stop, self.stop, table), bool(messages[:, 2].all())
