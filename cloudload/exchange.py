"""The exchange: how every rank comes to know every lane's cursor, off the critical path.

    rank 0    batch t arrives ──► start ─────────────► finish ──► batch t is handed out
    rank 1      batch t arrives ──► start ───────────► finish ──► batch t is handed out

A rank's message for a window of batches is its lanes' cursors after each of its rows, its row count, what it counted, and the
first row that a lane could not fill. All ranks gather all messages, asynchronously, over a CPU process group of the loader's own.
What follows from the messages is the same on every rank: the cursor table, the statistics, and whether the lanes have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from cloudload.batch import Progress
from cloudload.errors import RanksDisagreeError
from cloudload.lanes import Ints, World, rank_rows
from cloudload.position import LaneArrays
from cloudload.recipe import Recipe

_HEADER = 3
_FIRST_CAPACITY = 1 << 10


class Exchange(Protocol):
    """Carries the messages of the ranks."""

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        """Send `message` (int64 [n], of any length); the call returned waits for those of all ranks.

        All ranks start and finish their messages in the same order.
        """
        ...

    def compare(self, facts: dict[str, Any], world: World) -> None:
        """Raises `RanksDisagreeError` where ranks do not share the same facts, or do not make up the whole world."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...


class NoExchange:
    """A rank on its own."""

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        return lambda: [message]

    def compare(self, facts: dict[str, Any], world: World) -> None:
        pass

    def close(self) -> None:
        pass


class DistributedExchange:
    """Over torch.distributed, in a gloo group of its own. Making one, and each of its calls, takes all ranks.

    Messages travel in buffers of equal size. Where one does not fit, all ranks see so from the sizes, gather the rest at once,
    and take larger buffers from then on.
    """

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._size = dist.get_world_size()
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
                messages = [np.concatenate([part, rest])[:size] for part, rest, size in zip(messages, rests, sizes, strict=True)]
            return messages

        return finish

    def _gather(self, numbers: Ints, size: int) -> Callable[[], list[Ints]]:
        import torch

        own = torch.zeros(size, dtype=torch.int64)
        own.numpy()[: len(numbers)] = numbers
        gathered = [torch.empty_like(own) for _ in range(self._size)]
        work = self._dist.all_gather(gathered, own, group=self._group, async_op=True)

        def finish() -> list[Ints]:
            try:
                work.wait()
            except RuntimeError as error:
                raise RanksDisagreeError(
                    f"the exchange between ranks broke off: another rank has stopped or is out of step ({error}). "
                    "Look at the first rank that failed, and resume from the last state"
                ) from error
            return [tensor.numpy() for tensor in gathered]

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
    world_size: int
    recipe: Recipe

    def message(self, index: int, parts: Sequence[Progress]) -> Ints:
        """The message of the rank of virtual index `index`: of its rows' progress, batch after batch.

        stop, index, first dry row, counts [streams, counts], cursors [rows, 2], sizes of residues [rows], residues
        """
        head = np.array([self.stop, index, min(part.first_dry for part in parts)], np.int64)
        counts: Ints = parts[0].counts if len(parts) == 1 else np.sum([part.counts for part in parts], axis=0)
        arrays = [head, counts.ravel(), *(part.cursors.ravel() for part in parts)]
        residues = [residue for part in parts for residue in part.residues]
        if residues:
            joined = b"".join(residues)
            joined += bytes(-len(joined) % 8)
            arrays += [np.array([len(residue) for residue in residues], np.int64), np.frombuffer(joined, np.int64)]
        return np.concatenate(arrays)

    def first_dry(self, messages: Sequence[Ints]) -> int:
        """The first row of the window that a lane could not fill, by the messages of all ranks; `NOT_DRY` where there is none."""
        stops = [int(message[0]) for message in messages]
        if any(stop != self.stop for stop in stops):
            raise RanksDisagreeError(
                f"the ranks are out of step: after this batch their rows are {stops}. "
                "Every rank must take the same number of batches"
            )
        return min(int(message[2]) for message in messages)


@dataclass(frozen=True)
class Update:
    """What the messages of all ranks about a window say of its rows before `stop`."""

    window: Window
    messages: Sequence[Ints]
    stop: int


def move_lanes(arrays: LaneArrays, updates: Sequence[Update]) -> None:
    """Move lane arrays on by windows that follow each other."""
    counts, numbers, cursors, residues = [], [], [], []
    size = _HEADER + arrays.counts.size
    for update in updates:
        window = update.window
        for message in update.messages:
            rows = rank_rows(window.start, window.stop, int(message[1]), window.world_size)
            known = len(rank_rows(window.start, update.stop, int(message[1]), window.world_size))
            counts.append(message[_HEADER:size])
            numbers.append(np.arange(rows.start, rows.stop, rows.step)[:known])
            cursors.append(message[size : size + 2 * known])
            if arrays.residues is not None:
                residues += _split_residues(message[size + 2 * len(rows) :], len(rows))[:known]
    arrays.counts.ravel()[:] += np.sum(counts, axis=0)
    recipe, all_rows = updates[0].window.recipe, np.concatenate(numbers)
    lanes, components = all_rows % recipe.num_lanes, recipe.components_of(all_rows)
    # where a lane has several rows, the last one counts
    arrays.cursors[components, lanes] = np.concatenate(cursors).reshape(-1, 2)
    if arrays.residues is not None:
        for component, lane, residue in zip(components.tolist(), lanes.tolist(), residues, strict=True):
            arrays.residues[component, lane] = residue


def _split_residues(words: Ints, num_rows: int) -> list[bytes]:
    joined = words[num_rows:].tobytes()
    stops = np.cumsum(words[:num_rows]).tolist()
    return [joined[start:stop] for start, stop in zip([0, *stops[:-1]], stops, strict=True)] if stops else []
