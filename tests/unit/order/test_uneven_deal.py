"""Any number of ranks can share the lanes, and each row goes to exactly one rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.lanes import Lanes
from cloudload.order.ranks import UnevenDeal, deal_lanes, index_in_group, share_lanes
from cloudload.system.arrays import Ints

HOSTS = st.lists(st.integers(1, 9), min_size=1, max_size=9).map(
    lambda sizes: np.repeat(np.arange(len(sizes)), sizes)
)


def deal(dealing: UnevenDeal, start: int, global_batch: int) -> list[Ints]:
    """The rows of each rank in a global batch."""
    ranks = dealing.deal(start, global_batch)
    return [start + np.flatnonzero(ranks == rank) for rank in range(len(dealing.hosts))]


def test_elements_are_numbered_within_their_groups() -> None:
    assert index_in_group(np.array([5, 7, 5, 5, 7])).tolist() == [0, 0, 1, 2, 1]
    assert index_in_group(np.array([], np.int64)).tolist() == []


LANES = Lanes(6, 100, None, 3)
"""Six lanes of three nodes. On the line, they are in the order 0 3 1 4 2 5."""


@pytest.mark.parametrize(
    ("hosts", "owners"),
    [
        ([0, 0, 1, 1], [0, 1, 2, 0, 3, 2]),  # half of the line for each machine
        ([0, 1, 1, 1], [0, 1, 2, 0, 3, 1]),  # a quarter for machine 0
        ([0, 0, 0, 1], [0, 1, 2, 0, 1, 3]),  # three quarters
        ([0, 1, 0, 1], [0, 2, 1, 0, 3, 1]),  # ranks 0 and 2 are on machine 0
    ],
    ids=str,
)
def test_a_machine_owns_its_part_of_the_line_and_its_ranks_share_it(
    hosts: list[int], owners: list[int]
) -> None:
    assert share_lanes(LANES, np.array(hosts)).owners.tolist() == owners


def test_lanes_of_a_node_are_spread_from_it_to_the_next() -> None:
    places = share_lanes(LANES, np.array([0])).points
    assert np.argsort(places).tolist() == [0, 3, 1, 4, 2, 5]
    assert (places * 3).astype(int).tolist() == [0, 1, 2, 0, 1, 2]


def test_a_rank_keeps_its_own_rows_and_the_surplus_fills_its_machine() -> None:
    """Rows 0 to 7 are of lanes 0 to 5, 0 and 1. In the order of the line, they are 0 6 3 1 7 4 2 5.

    The first six are machine 0's, so row 2 moves from rank 2 to machine 1. Ranks 0 and 1 have a
    row too many each, 6 and 7, and rank 2 has none.
    """
    dealing = share_lanes(LANES, np.array([0, 0, 0, 1]))
    assert [rows.tolist() for rows in deal(dealing, 0, 8)] == [[0, 3], [1, 4], [6, 7], [2, 5]]


@pytest.mark.parametrize(
    ("hosts", "start", "rows"),
    [
        ([0, 0, 1, 1], 0, [[0, 3], [1, 6], [2, 5], [4, 7]]),
        ([0, 1, 1, 1], 0, [[0, 6], [1, 5], [2, 3], [4, 7]]),
        ([0, 1, 1, 1], 3, [[3, 6], [5, 7], [8, 9], [4, 10]]),
    ],
    ids=str,
)
def test_rows_are_dealt_by_the_place_of_their_lane(
    hosts: list[int], start: int, rows: list[list[int]]
) -> None:
    dealt = deal(share_lanes(LANES, np.array(hosts)), start, 8)
    assert [each.tolist() for each in dealt] == rows


def test_rows_are_dealt_only_if_the_ranks_do_not_divide_the_lanes() -> None:
    assert deal_lanes([LANES], np.array([0, 0, 1])) is None
    assert deal_lanes([LANES], np.array([0, 0, 1, 1])) is not None


def test_the_lanes_of_a_mixture_are_shared_like_those_with_the_most_nodes() -> None:
    hosts = np.array([0, 0, 0, 1])
    components = [Lanes(6, 100, None, nodes) for nodes in (1, 3, 2)]
    dealing = deal_lanes(components, hosts)
    assert dealing is not None
    assert dealing.owners.tolist() == share_lanes(components[1], hosts).owners.tolist()
    assert dealing.owners.tolist() != share_lanes(components[2], hosts).owners.tolist()


@given(
    hosts=HOSTS,
    shape=st.sampled_from([(1, 1), (12, 4), (12, 12), (60, 4), (30, 2)]),
    global_batch=st.integers(1, 40),
    start=st.integers(0, 500),
)
def test_every_rank_gets_its_share_and_every_row_falls_to_one_rank(
    hosts: Ints, shape: tuple[int, int], global_batch: int, start: int
) -> None:
    num_lanes, num_nodes = shape
    dealing = share_lanes(Lanes(num_lanes, 10_000, None, num_nodes), hosts)
    dealt, rows = deal(dealing, start, global_batch), np.arange(start, start + global_batch)
    assert [len(each) for each in dealt] == [
        int((rows % len(hosts) == rank).sum()) for rank in range(len(hosts))
    ]
    assert sorted(np.concatenate(dealt)) == rows.tolist()


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
        dealt = np.stack(deal(dealing, batch * 8 * len(hosts), 8 * len(hosts)))
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
