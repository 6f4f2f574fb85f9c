"""Deal rows to a world whose size does not divide the number of lanes.

    rows of a batch, by the point of their lane     a a a b b b c c c d     a … d: canonical nodes
    2 machines of 3 and 2 ranks, 2 rows each        └─────────┘ └─────┘     a prefix, then the rest

Each lane has a point on a line: the index of its canonical node, plus a fraction that differs among
the lanes of a node. A machine gets the same part of this line in every batch. So it reads
neighboring canonical nodes, and few of its shards are also read by other machines. Within a
machine, a rank keeps the rows of the lanes that it owns, up to its batch size. The surplus goes to
ranks that have too few rows.

All of this is a pure function of the rows, the world and the batch size, so the ranks agree on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.order.lanes import Lanes
from cloudload.system import Floats, Ints

_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class UnevenDeal:
    """The assignment of rows to ranks. A rank is identified by its virtual index."""

    points: Floats
    """The point of each lane on the line, from 0 to 1: float64 [lanes]."""
    owners: Ints
    """The rank that owns each lane: int64 [lanes]."""
    hosts: Ints
    """The machine of each rank: int64 [ranks]."""

    def deal(self, start: int, batch_size: int) -> Ints:
        """The rows of each rank in the global batch that begins at row `start`.

        Returns int64 [ranks, batch_size]; each rank's rows ascend.
        """
        rows = np.arange(start, start + len(self.hosts) * batch_size)
        lanes = rows % len(self.owners)
        # in the order of their points, the first rows are those of the first machine, and so on
        row_hosts = np.empty_like(rows)
        row_hosts[np.argsort(self.points[lanes], kind="stable")] = np.sort(
            np.repeat(self.hosts, batch_size)
        )
        # a rank keeps the rows of its lanes that its machine has, up to its batch size
        ranks = self.owners[lanes]
        is_own = self.hosts[ranks] == row_hosts
        is_own[is_own] = index_in_group(ranks[is_own]) < batch_size
        self._fill_up(ranks, np.flatnonzero(~is_own), row_hosts, batch_size)
        dealt: Ints = rows[np.argsort(ranks, kind="stable")].reshape(-1, batch_size)
        return dealt

    def _fill_up(self, ranks: Ints, left: Ints, row_hosts: Ints, batch_size: int) -> None:
        """Assign the rows `left` to ranks of their machine that have too few. Changes `ranks`."""
        is_dealt = np.ones(len(ranks), np.bool_)
        is_dealt[left] = False
        num_ranks = len(self.hosts)
        missing = batch_size - np.bincount(ranks[is_dealt], minlength=num_ranks)
        seats = np.repeat(np.arange(num_ranks), missing)
        # each machine has as many rows left as missing, so both sides have the same length
        left = left[np.argsort(row_hosts[left], kind="stable")]
        ranks[left] = seats[np.argsort(self.hosts[seats], kind="stable")]


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
