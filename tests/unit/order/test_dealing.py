"""Any number of ranks can share the lanes, and each row goes to exactly one rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.lanes import Lanes
from cloudload.order.uneven_deal import share_lanes
from cloudload.system.arrays import Ints

HOSTS = st.lists(st.integers(1, 9), min_size=1, max_size=9).map(
    lambda sizes: np.repeat(np.arange(len(sizes)), sizes)
)


@given(
    hosts=HOSTS,
    shape=st.sampled_from([(1, 1), (12, 4), (12, 12), (60, 4), (30, 2)]),
    batch_size=st.integers(1, 9),
    start=st.integers(0, 500),
)
def test_every_rank_gets_a_batch_and_every_row_falls_to_one_rank(
    hosts: Ints, shape: tuple[int, int], batch_size: int, start: int
) -> None:
    num_lanes, num_nodes = shape
    dealing = share_lanes(Lanes(num_lanes, 10_000, None, num_nodes), hosts)
    dealt = dealing.deal(start, batch_size)
    assert dealt.shape == (len(hosts), batch_size)
    assert (np.diff(dealt, axis=1) > 0).all()
    assert sorted(dealt.ravel()) == list(range(start, start + dealt.size))


@pytest.mark.parametrize(
    ("num_lanes", "per_host"),
    [(60, [7]), (3_840, [7] * 9), (3_840, [8] * 9), (3_840, [8] * 63), (3_840, [8] * 7 + [7])],
)
def test_most_rows_stay_with_the_owner_of_their_lane_and_most_others_on_its_machine(
    num_lanes: int, per_host: list[int]
) -> None:
    hosts = np.repeat(np.arange(len(per_host)), per_host)
    num_nodes = 4 if num_lanes == 60 else 64
    dealing = share_lanes(Lanes(num_lanes, 10**6, None, num_nodes), hosts)
    moved = moved_away = total = 0
    for batch in range(20):
        dealt = dealing.deal(batch * 8 * len(hosts), 8)
        owners = dealing.owners[dealt % num_lanes]
        ranks = np.arange(len(hosts))[:, None]
        moved += int((owners != ranks).sum())
        moved_away += int((hosts[owners] != hosts[ranks]).sum())
        total += dealt.size
    assert moved < 0.15 * total
    assert moved_away < 0.06 * total


def test_machines_own_neighboring_nodes() -> None:
    lanes = Lanes(3_840, 10**6, None, 64)
    hosts = np.repeat(np.arange(9), 7)
    owners = hosts[share_lanes(lanes, hosts).owners]
    nodes = lanes.first_positions % 64
    touched = [np.unique(nodes[owners == host]) for host in range(9)]
    assert sum(map(len, touched)) <= 64 + 8
    assert all((np.diff(each) == 1).all() for each in touched)


@given(
    hosts=HOSTS, shape=st.sampled_from([(12, 4), (60, 4), (30, 2)]), num_workers=st.integers(1, 4)
)
def test_a_lane_belongs_to_one_worker(
    hosts: Ints, shape: tuple[int, int], num_workers: int
) -> None:
    num_lanes, num_nodes = shape
    dealing = share_lanes(Lanes(num_lanes, 10_000, None, num_nodes), hosts)
    rows = np.arange(3 * num_lanes)
    workers = dealing.workers_of(rows, num_workers).reshape(3, -1)
    assert (workers == workers[0]).all()
    for rank in range(len(hosts)):
        counts = np.bincount(workers[0][dealing.owners == rank], minlength=num_workers)
        assert counts.max() - counts.min() <= 1
