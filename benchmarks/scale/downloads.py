"""Count how often each shard is downloaded: once by every node that reads its canonical node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Row
from cloudload.loading.delivery.start_log import count_machines
from cloudload.order.lanes import Lanes
from cloudload.order.ranks import World, share_rows

_DOCUMENTS = 10_000_000_000


def count_downloads(ranks: int, nodes: int) -> Iterator[Row]:
    """Yield the downloads of a shard on `nodes` nodes of `ranks` ranks, for several layouts.

    A layout is a number of lanes and of canonical nodes.
    """
    size = nodes * ranks
    largest_divisor = max(number for number in range(1, 65) if nodes % number == 0)
    for num_lanes, num_nodes in (
        (int(np.lcm(64, size)), 64),
        (3_840, 64),
        (2 * size, largest_divisor),
        (2 * size, nodes),
    ):
        lanes = Lanes(num_lanes, _DOCUMENTS, None, num_nodes)
        share = share_rows([lanes], World(0, size, ranks))
        downloads = count_machines(lanes, share.lane_hosts)
        yield {
            "num_lanes": num_lanes,
            "num_canonical_nodes": num_nodes,
            "divided evenly": "yes" if num_lanes % size == 0 else "no",
            "downloads of each shard": downloads,
            "canonical nodes of a node": downloads * num_nodes / nodes,
        }
