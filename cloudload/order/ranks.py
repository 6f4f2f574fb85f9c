"""The data-parallel ranks of a run, and each rank's share of the lanes and rows.

    World       rank, size, ranks per node ─► virtual index, machine of each rank
    StepShape   rows of a step, micro-batch ─► rows of each rank, micro-batches
    RankShare   world, lanes, workers      ─► who owns a lane, who computes a row

    6 lanes, 2 ranks of 2 workers    rank 0: lanes 0 2 4, of its workers 0 1 0
                                     rank 1: lanes 1 3 5, of its workers 0 1 0

A rank owns whole lanes if the world size divides their number. Otherwise, each global batch is
dealt to the ranks (`UnevenDeal`), and a rank also computes rows of other ranks' lanes:

    rows of a batch, by the point of their lane     a a a b b b c c c d     a … d: canonical nodes
    2 machines of 3 and 2 ranks, 2 rows each        └─────────┘ └─────┘     a prefix, then the rest

Each lane has a point on a line: the index of its canonical node, plus a fraction that differs among
the lanes of a node. A machine gets the same part of this line in every batch. So it reads
neighboring canonical nodes, and few of its shards are also read by other machines. Within a
machine, a rank keeps the rows of the lanes that it owns, up to its seats in the batch. The surplus
goes to ranks that have too few rows. With the option `balance`, the rows that a machine has of a
batch are then divided among its ranks by their work (`balance`).

All of this is a pure function of the rows and the world, so the ranks agree on it. It decides
who computes a row, never what the row holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.config import DeliveryConfig
from cloudload.order.balance import deal_by_work
from cloudload.order.lanes import Lanes
from cloudload.system import Floats, Ints

FILLER = -1
"""The index of a filler row, which is in no run."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2


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
class StepShape:
    """The rows of an optimizer step, and their division into ranks and micro-batches.

    If the world size does not divide the rows of a step, some ranks have one row less, and filler
    rows in their batches make up for it. So all batches of all ranks have the same shape.

    Raises `ValueError` if a step has fewer rows than ranks.
    """

    global_batch: int
    """Rows per step, across all ranks."""
    world_size: int
    micro_batch: int | None = None
    """Maximum number of rows per micro-batch, or None if a rank's rows are one batch."""

    def __post_init__(self) -> None:
        if self.global_batch < self.world_size:
            raise ValueError(
                f"global_batch_size is {self.global_batch}, but there are {self.world_size} ranks, "
                "so some would have no rows. Use a larger global_batch_size, or fewer ranks"
            )

    @classmethod
    def of(cls, delivery: DeliveryConfig, world_size: int) -> StepShape:
        """The shape that a loader's options give a step. Raises the errors of the class."""
        global_batch = delivery.global_batch(world_size)
        return cls(global_batch, world_size, delivery.micro_batch_size)

    @property
    def rank_rows(self) -> int:
        """Maximum number of rows per rank and step, without filler rows."""
        return -(-self.global_batch // self.world_size)

    @property
    def num_batches(self) -> int:
        """Batches of the loader per step: the number of micro-batches."""
        return -(-self.rank_rows // (self.micro_batch or self.rank_rows))

    @property
    def batch_rows(self) -> int:
        """Rows per batch of the loader, with filler rows."""
        return -(-self.rank_rows // self.num_batches)

    def divide(self, num_rows: int) -> list[int]:
        """Divide a rank's rows into micro-batches: the first row of each, then `num_rows`.

        Filler rows complete each micro-batch.
        """
        return [num_rows * batch // self.num_batches for batch in range(self.num_batches + 1)]

    def sort_micro_batches(self, rows: Ints) -> Ints:
        """Sort the rows of each of a rank's micro-batches: int64 [rows]."""
        parts = np.split(rows, self.divide(len(rows))[1:-1])
        return np.concatenate([np.sort(part) for part in parts])


@dataclass(frozen=True)
class RankShare:
    """The lanes and rows of one rank, divided among its workers."""

    world: World
    num_lanes: int
    """Number of lanes of the run."""
    shape: StepShape
    """The rows of a step."""
    num_workers: int
    """Number of workers of the rank, at least 1."""
    dealing: UnevenDeal | None
    """The assignment of rows to ranks in an uneven world; None if the world is even."""
    is_balanced: bool = False
    """Whether the rows that a machine has of a step are then divided among its ranks by their
    work."""

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
        """Whether the world size divides the number of lanes."""
        return self.dealing is None

    @property
    def has_whole_lanes(self) -> bool:
        """Whether a rank makes all rows of the lanes that it owns.

        Otherwise, rows are dealt to ranks, which find the documents of a row from token lengths.
        """
        return self.is_even and not self.is_balanced

    @property
    def global_batch(self) -> int:
        """Number of rows per step, across all ranks."""
        return self.shape.global_batch

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

    @cached_property
    def machine_ranks(self) -> Ints:
        """The virtual indices of the ranks on this rank's machine, ascending: int64 [ranks]."""
        return np.flatnonzero(self.hosts == self.hosts[self.index])

    def own_lanes(self, worker: int) -> Ints:
        """The lanes of one of the rank's workers, ascending: int64 [lanes]."""
        return np.flatnonzero((self.owners == self.index) & (self.workers == worker))

    def ranks_of(self, start: int) -> Ints:
        """The rank of each row in the global batch that begins at row `start`: int64 [rows].

        If the share `is_balanced`, the ranks of a machine may then exchange rows.
        """
        if self.dealing is not None:
            return self.dealing.deal(start, self.global_batch)
        return np.arange(start, start + self.global_batch) % self.world_size

    def list_machine_rows(self, firsts: Sequence[int]) -> Ints:
        """The rows of this rank's machine in the global batches from rows `firsts` on.

        Each row of the result has those of a batch: -1 for each filler row that completes the rows
        of a rank, then the others, ascending. It is int64 [batches, ranks * rows of a rank].
        """
        host, width = self.hosts[self.index], len(self.machine_ranks) * self.shape.rank_rows
        listed = np.full((len(firsts), width), FILLER)
        for of_batch, first in zip(listed, firsts, strict=True):
            rows = first + np.flatnonzero(self.hosts[self.ranks_of(first)] == host)
            of_batch[width - len(rows) :] = rows
        return listed

    def balance(self, rows: Ints, work: Ints, filler_work: int) -> tuple[Ints, Ints]:
        """Divide the rows of this rank's machine among its ranks, so that their work is balanced.

        `rows` is the result of `list_machine_rows`, and `work` (int64 [rows]) that of each row that
        is not a filler row, in their order. Returns the rows of each rank, and their work, in the
        order of the rank's micro-batches: int64 [batches, ranks, rows of a rank] each.
        """
        all_work = np.full(rows.shape, filler_work)
        all_work[rows != FILLER] = work
        sizes = np.diff(self.shape.divide(self.shape.rank_rows)).tolist()
        dealt = deal_by_work(all_work, len(self.machine_ranks), sizes)
        batches = np.arange(len(rows))[:, None, None]
        return rows[batches, dealt], all_work[batches, dealt]

    def rank_rows(self, start: int, stop: int) -> range | Ints:
        """The rows of this rank in the global batches [start, stop), ascending: int64 [rows].

        They are a range if the world is even. If the share `is_balanced`, they are the rows before
        the ranks of a machine exchange rows.
        """
        index, size = self.index, self.world_size
        if self.dealing is None:
            return range(start + (index - start) % size, stop, size)
        first_rows = range(start, stop, self.global_batch)
        dealt = [first + np.flatnonzero(self.ranks_of(first) == index) for first in first_rows]
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
    lanes: Sequence[Lanes],
    world: World,
    shape: StepShape | None = None,
    num_workers: int = 1,
    *,
    balances: bool = False,
) -> RankShare:
    """The share of the world's rank in a run, given the `lanes` of each component.

    By default, a step has one row per rank. With `balances`, the rows of a step are balanced among
    the ranks of each machine, if any machine has several ranks.
    """
    dealing = deal_lanes(lanes, np.array(world.hosts))
    shape = shape or StepShape(world.size, world.size)
    balances = balances and len(set(world.hosts)) < world.size
    return RankShare(world, lanes[0].num_lanes, shape, num_workers, dealing, balances)


# ---------------------------------------------------------------- uneven worlds


@dataclass(frozen=True)
class UnevenDeal:
    """The assignment of rows to ranks. A rank is identified by its virtual index."""

    points: Floats
    """The point of each lane on the line, from 0 to 1: float64 [lanes]."""
    owners: Ints
    """The rank that owns each lane: int64 [lanes]."""
    hosts: Ints
    """The machine of each rank: int64 [ranks]."""

    def deal(self, start: int, global_batch: int) -> Ints:
        """The rank of each row in the global batch that begins at row `start`: int64 [rows].

        Rank `r` has as many rows as there are rows `g` with `g % ranks == r`.
        """
        rows = np.arange(start, start + global_batch)
        lanes, num_ranks = rows % len(self.owners), len(self.hosts)
        seats = np.bincount(rows % num_ranks, minlength=num_ranks)
        # in the order of their points, the first rows are those of the first machine, and so on
        row_hosts = np.empty_like(rows)
        row_hosts[np.argsort(self.points[lanes], kind="stable")] = np.sort(
            np.repeat(self.hosts, seats)
        )
        # a rank keeps the rows of its lanes that its machine has, up to its seats
        ranks: Ints = self.owners[lanes]
        is_own = self.hosts[ranks] == row_hosts
        is_own[is_own] = index_in_group(ranks[is_own]) < seats[ranks[is_own]]
        self._fill_up(ranks, np.flatnonzero(~is_own), row_hosts, seats)
        return ranks

    def _fill_up(self, ranks: Ints, left: Ints, row_hosts: Ints, seats: Ints) -> None:
        """Assign the rows `left` to ranks of their machine that have too few. Changes `ranks`."""
        is_dealt = np.ones(len(ranks), np.bool_)
        is_dealt[left] = False
        num_ranks = len(self.hosts)
        missing = seats - np.bincount(ranks[is_dealt], minlength=num_ranks)
        free = np.repeat(np.arange(num_ranks), missing)
        # each machine has as many rows left as free seats, so both sides have the same length
        left = left[np.argsort(row_hosts[left], kind="stable")]
        ranks[left] = free[np.argsort(self.hosts[free], kind="stable")]


def share_lanes(lanes: Lanes, hosts: Ints) -> UnevenDeal:
    """Share lanes among any number of ranks. `hosts` is int64 [ranks]: the machine of each, from 0.

    Each machine owns the lanes on one part of the line, whose length is proportional to the number
    of its ranks. It assigns these lanes to its ranks round-robin.
    """
    indices = np.arange(lanes.num_lanes)
    # multiples of the golden ratio are spread evenly, so any part of a node's range has a fair part
    # of the node's lanes
    points = (lanes.nodes + indices // lanes.num_nodes * _GOLDEN_RATIO % 1) / lanes.num_nodes
    per_host = np.bincount(hosts)
    borders = np.cumsum(per_host)[:-1] / len(hosts)
    lane_hosts = np.searchsorted(borders, points, side="right")
    # the ranks of a machine take turns at its lanes
    turns = index_in_group(lane_hosts) % per_host[lane_hosts]
    firsts = np.cumsum(per_host) - per_host
    owners = np.argsort(hosts, kind="stable")[firsts[lane_hosts] + turns]
    return UnevenDeal(points, owners, hosts)


def deal_lanes(components: Sequence[Lanes], hosts: Ints) -> UnevenDeal | None:
    """The dealing of a run's rows; None if the world size divides the number of lanes.

    `hosts` is as in `share_lanes`. The lanes of all components are shared like those of the
    component with the most canonical nodes.
    """
    if components[0].num_lanes % len(hosts) == 0:
        return None
    return share_lanes(max(components, key=lambda lanes: lanes.num_nodes), hosts)


def index_in_group(groups: Ints) -> Ints:
    """The index of each element within its group: int64 [elements].

    Example: 5 7 5 5 7 gives 0 0 1 2 1.
    """
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    indices = np.empty_like(order)
    indices[order] = np.arange(len(groups)) - np.searchsorted(in_order, in_order)
    return indices
