"""The working set is estimated without building the order, and is close to the exact one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.loading.delivery.working_set import measure_working_set
from cloudload.order.lanes import Lanes
from testkit.reference_order import order_of


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    num_nodes=st.sampled_from([1, 2, 3, 4, 6]),
    block_size=st.integers(2, 60),
    hosts=st.sampled_from([1, 2, 3]),
)
def test_the_working_set_is_told_without_building_the_order(
    sizes: list[int], num_nodes: int, block_size: int, hosts: int
) -> None:
    order = order_of(sizes, min(num_nodes, sum(sizes)), block_size)
    told, built = (
        needed_bytes(sizes, array, min(num_nodes, sum(sizes)), hosts) for array in (order, order[:])
    )
    # `told` counts a shard once per node that uses it. `built` counts the shard once, but from its
    # first use on any node to its last
    assert built <= told + max(sizes) * 100 * (num_nodes - 1)
    assert told <= sum(sizes) * 100 + max(sizes) * 100 * num_nodes


def test_the_working_set_of_a_large_order_is_close_to_the_real_one() -> None:
    sizes = [100] * 1_000
    order = order_of(sizes, 4, 400)
    told, built = (needed_bytes(sizes, array, 4, 1) for array in (order, order[:]))
    assert built <= told <= 1.1 * built


def needed_bytes(sizes: list[int], order: Any, num_nodes: int, hosts: int) -> int:
    """Return the peak bytes in use on one host, without downloads, at 100 bytes per sample."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    table = SimpleNamespace(raw_bytes=100 * np.array(sizes), is_zipped=np.zeros(len(sizes), bool))
    corpus: Any = SimpleNamespace(
        datasets=[SimpleNamespace(url="s3://x", table=table)],
        shard_sizes=np.array(sizes),
        shards_of=lambda samples: np.searchsorted(starts, samples, side="right") - 1,
    )
    component: Any = SimpleNamespace(
        sampling=None,
        first_sample=0,
        shard_sizes=np.array(sizes),
        order=SimpleNamespace(num_canonical_nodes=num_nodes),
        lanes=Lanes(num_nodes, sum(sizes), None, num_nodes),
    )
    lanes = np.arange(0, num_nodes, hosts)
    needed = measure_working_set(corpus, [component], [order], own_lanes=lanes, downloads_at_once=1)
    return needed - 100 * max(sizes)
