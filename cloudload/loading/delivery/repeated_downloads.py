"""Warn of shards that several machines download, because they read the same canonical node.

    1,250 machines, 3,840 lanes on 64 canonical nodes     20 machines download each shard
    1,250 machines, 20,000 lanes on 1,250                  1 machine does

Two canonical nodes both read a shard at their border, but it counts as if only one of them did.
"""

from __future__ import annotations

import operator

import numpy as np

from cloudload.data.mds.dataset import are_in_place
from cloudload.loading.workers.plan import Plan
from cloudload.order.lanes import Lanes
from cloudload.run.components import Component
from cloudload.system.arrays import Ints

# smaller repeated downloads cost a few dollars at most, even from another region
_NOTABLE_BYTES = 1e11


def explain_repeated_downloads(plan: Plan) -> str | None:
    """Return a warning if the repeated downloads of one epoch exceed 100 GB, otherwise None."""
    num_machines = len(set(plan.hosts))
    components = plan.recipe.components
    stored = [_count_stored_bytes(plan, component) for component in components]
    once = sum(stored)
    if once * (num_machines - 1) < _NOTABLE_BYTES:
        return None
    lane_hosts = plan.lane_hosts()
    machines = [count_machines(component.lanes, lane_hosts) for component in components]
    all_bytes = sum(map(operator.mul, stored, machines))
    if all_bytes - once < _NOTABLE_BYTES:
        return None
    return (
        f"{num_machines:,} machines read the same canonical nodes, so each shard is downloaded by "
        f"{all_bytes / once:,.1f} machines on average. An epoch downloads {all_bytes / 1e9:,.0f} "
        f"GB for {once / 1e9:,.0f} GB of shards{_advise(plan, num_machines)}"
    )


def _advise(plan: Plan, num_machines: int) -> str:
    """Return what a new run should set, or nothing if this run has already set it."""
    if all(each.lanes.num_nodes % num_machines == 0 for each in plan.recipe.components):
        return ""
    advice = f". In a new run, set num_canonical_nodes={num_machines}"
    return advice + " and num_lanes to a multiple of it" * bool(plan.num_lanes % num_machines)


def count_machines(lanes: Lanes, lane_hosts: Ints) -> float:
    """Return the mean number of machines that read each canonical node.

    `lane_hosts` has the machine of each lane: int64 [lanes].
    """
    pairs = lanes.nodes * (int(lane_hosts.max()) + 1) + lane_hosts
    return len(np.unique(pairs)) / lanes.num_nodes


def _count_stored_bytes(plan: Plan, component: Component) -> int:
    streams = component.streams
    datasets = plan.recipe.corpus.datasets[streams.start : streams.stop]
    return sum(int(each.table.stored_bytes[~are_in_place(each)].sum()) for each in datasets)
