"""The data-parallel ranks of a run, and each rank's share of the lanes and rows.

    World       rank, size, ranks per node ─► virtual index, machine of each rank
    RankShare   world, lanes, workers      ─► who owns a lane, who computes a row

    6 lanes, 2 ranks of 2 workers    rank 0: lanes 0 2 4, of its workers 0 1 0
                                     rank 1: lanes 1 3 5, of its workers 0 1 0

A rank owns whole lanes if the world size divides their number. Otherwise, each global batch is
dealt to the ranks (`uneven_deal`), and a rank also computes rows of other ranks' lanes. All of this
decides who computes a row, never what the row holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.order.lanes import Lanes
from cloudload.order.uneven_deal import UnevenDeal, deal_lanes, index_in_group
from cloudload.system import Ints


@dataclass(frozen=True)
class World:
    """The data-parallel ranks of a run, and this process's rank among them.

    Raises `ValueError` if `size` is below 1, or if `rank` is not from 0 to `size - 1`.
    """

    rank: int
    """This process's data-parallel rank."""
    size: int
    """Number of data-parallel ranks."""
    ranks_per_node: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(
                f"the data-parallel world size is {self.size}. Set dp_world_size, or the "
                "environment variable WORLD_SIZE, to at least 1"
            )
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"the data-parallel rank is {self.rank}, but the world size is {self.size}. Use a "
                f"rank from 0 to {self.size - 1}"
            )

    @property
    def index(self) -> int:
        """The virtual index of this rank, which determines its lanes.

        Ranks with consecutive indices are on different nodes, if there are several, so the lanes
        of a node share canonical nodes. If `ranks_per_node` does not divide `size`, the index is
        the rank itself.
        """
        if self.size % self.ranks_per_node:
            return self.rank
        node, local_rank = divmod(self.rank, self.ranks_per_node)
        return local_rank * (self.size // self.ranks_per_node) + node

    @property
    def hosts(self) -> tuple[int, ...]:
        """The index of each rank's machine. Ranks are ordered by their virtual index."""
        if self.size % self.ranks_per_node:
            return tuple(rank // self.ranks_per_node for rank in range(self.size))
        num_hosts = self.size // self.ranks_per_node
        return tuple(index % num_hosts for index in range(self.size))


@dataclass(frozen=True)
class RankShare:
    """The lanes and rows of one rank, divided among its workers."""

    world: World
    num_lanes: int
    """Number of lanes of the run."""
    batch_size: int
    """Rows per rank and step."""
    num_workers: int
    """Number of workers of the rank, at least 1."""
    dealing: UnevenDeal | None
    """The assignment of rows to ranks in an uneven world; None if the world is even."""

    @property
    def index(self) -> int:
        """The virtual index of the rank."""
        return self.world.index

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.world.size

    @property
    def is_even(self) -> bool:
        """Whether the world size divides the number of lanes, so that a rank owns whole lanes.

        Otherwise, rows are dealt to ranks, which find the documents of a row from token lengths.
        """
        return self.dealing is None

    @property
    def global_batch(self) -> int:
        """Number of rows per step, across all ranks."""
        return self.batch_size * self.world_size

    @cached_property
    def hosts(self) -> Ints:
        """The machine of each rank, by virtual index: int64 [ranks]."""
        return np.array(self.world.hosts)

    @cached_property
    def owners(self) -> Ints:
        """The virtual index of the rank that owns each lane: int64 [lanes]."""
        if self.dealing is None:
            return np.arange(self.num_lanes) % self.world_size
        return self.dealing.owners

    @cached_property
    def workers(self) -> Ints:
        """The worker of each lane, as its index within the lane's owner: int64 [lanes].

        An owner assigns its lanes to its workers round-robin. All ranks must have the same number
        of workers.
        """
        return index_in_group(self.owners) % self.num_workers

    @property
    def lane_hosts(self) -> Ints:
        """The machine of the rank that owns each lane: int64 [lanes]."""
        machines: Ints = self.hosts[self.owners]
        return machines

    @property
    def machine_lanes(self) -> Ints:
        """The lanes of all ranks on this rank's machine, ascending: int64 [lanes]."""
        return np.flatnonzero(self.lane_hosts == self.hosts[self.index])

    def own_lanes(self, worker: int) -> Ints:
        """The lanes of one of the rank's workers, ascending: int64 [lanes]."""
        return np.flatnonzero((self.owners == self.index) & (self.workers == worker))

    def rank_rows(self, start: int, stop: int) -> range | Ints:
        """The rows of this rank in the global batches [start, stop), ascending: int64 [rows].

        They are a range if the world is even.
        """
        index, size = self.index, self.world_size
        if self.dealing is None:
            return range(start + (index - start) % size, stop, size)
        first_rows = range(start, stop, self.global_batch)
        dealt = [self.dealing.deal(first, self.batch_size)[index] for first in first_rows]
        rows: Ints = np.concatenate(dealt)
        return rows

    def worker_of(self, rows: range | Ints) -> Ints:
        """The worker of each row, as its index within the rank: int64 [rows].

        The rows of a lane belong to the worker of the lane, even if they are dealt to another rank.
        """
        workers: Ints = self.workers[np.asarray(rows, np.int64) % self.num_lanes]
        return workers

    def rows_by_worker(self, rows: range | Ints) -> list[slice | Ints]:
        """The indices of each worker's rows within the rank's `rows`.

        int64 [rows] for each worker, or a slice if there is only one worker.
        """
        if self.num_workers == 1:
            return [slice(None)]
        workers = self.worker_of(rows)
        return [np.flatnonzero(workers == worker) for worker in range(self.num_workers)]

    def worker_rows(self, worker: int, start: int, stop: int) -> Ints:
        """The rows of one worker in the global batches [start, stop): int64 [rows], ascending."""
        rows = self.rank_rows(start, stop)
        own: Ints = np.asarray(rows, np.int64)[self.rows_by_worker(rows)[worker]]
        return own

    def end_whole_batches(self, start: int, row: int) -> int:
        """The row at which the last whole global batch before `row` ends, counted from `start`."""
        return start + max(0, row - start) // self.global_batch * self.global_batch


def share_rows(
    lanes: Sequence[Lanes], world: World, batch_size: int = 1, num_workers: int = 1
) -> RankShare:
    """The share of the world's rank in a run, given the `lanes` of each component."""
    dealing = deal_lanes(lanes, np.array(world.hosts))
    return RankShare(world, lanes[0].num_lanes, batch_size, num_workers, dealing)
