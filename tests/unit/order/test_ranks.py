"""Each lane belongs to one rank and one of its workers, and each row is computed once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.lanes import Lanes
from cloudload.order.ranks import RankShare, StepShape, World, share_rows

WORLDS = st.sampled_from([(1, 1), (4, 4), (8, 4), (12, 4), (6, 3), (6, 4), (5, 2), (7, 7), (9, 3)])
"""Numbers of ranks, and ranks per node. Some do not divide 24 lanes."""


def list_shares(world: tuple[int, int], global_batch: int, num_workers: int) -> list[RankShare]:
    """The shares of all ranks in a run of 24 lanes of 4 nodes."""
    lanes, (size, ranks_per_node) = Lanes(24, 10_000, None, 4), world
    worlds = [World(rank, size, ranks_per_node) for rank in range(size)]
    shape = StepShape(global_batch, size)
    return [share_rows([lanes], each, shape, num_workers) for each in worlds]


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [(3, 3, "rank is 3.*from 0 to 2"), (-1, 3, "rank is -1"), (0, 0, "world size is 0")],
)
def test_a_rank_outside_its_world_is_refused(rank: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World(rank, size, 1)


@pytest.mark.parametrize(
    ("size", "ranks_per_node", "hosts", "indices"),
    [
        (6, 3, (0, 1, 0, 1, 0, 1), [0, 2, 4, 1, 3, 5]),
        (6, 2, (0, 1, 2, 0, 1, 2), [0, 3, 1, 4, 2, 5]),
        (4, 3, (0, 0, 0, 1), [0, 1, 2, 3]),
        (2, 2, (0, 0), [0, 1]),
    ],
)
def test_consecutive_indices_are_on_different_nodes(
    size: int, ranks_per_node: int, hosts: tuple[int, ...], indices: list[int]
) -> None:
    worlds = [World(rank, size, ranks_per_node) for rank in range(size)]
    assert {world.hosts for world in worlds} == {hosts}
    assert [world.index for world in worlds] == indices


@pytest.mark.parametrize(
    ("start", "index", "rows"),
    [(0, 0, [0, 3, 6]), (0, 2, [2, 5, 8]), (4, 0, [6]), (4, 1, [4, 7]), (4, 2, [5, 8])],
)
def test_a_rank_computes_the_rows_of_its_lanes(start: int, index: int, rows: list[int]) -> None:
    share = share_rows([Lanes(9, 100, None)], World(index, 3, 3))
    assert list(share.rank_rows(start, 9)) == rows


def test_a_rank_assigns_its_lanes_to_its_workers_in_turn() -> None:
    share = share_rows([Lanes(8, 100, None)], World(1, 2, 2), num_workers=3)
    assert [share.own_lanes(worker).tolist() for worker in range(3)] == [[1, 7], [3], [5]]
    assert share.worker_of(range(1, 24, 2)).tolist() == [0, 1, 2, 0] * 3
    assert share.worker_of(np.array([15, 3])).tolist() == [0, 1]


def test_an_uneven_rank_assigns_its_lanes_in_turn_too() -> None:
    """Ranks 0 to 3 own lanes 0 3 · 1 4 · 2 · 5, and rank 3 is on the second machine."""
    share = share_rows([Lanes(6, 100, None, 3)], World(0, 4, 3), num_workers=2)
    assert not share.is_even
    assert share.own_lanes(0).tolist() == [0]
    assert share.own_lanes(1).tolist() == [3]
    assert share.worker_of(np.arange(12)).tolist() == [0, 0, 0, 1, 1, 0] * 2
    assert share.lane_hosts.tolist() == [0, 0, 0, 0, 0, 1]
    assert share.machine_lanes.tolist() == [0, 1, 2, 3, 4]


def test_a_lane_is_on_the_machine_of_its_owner() -> None:
    share = share_rows([Lanes(8, 100, None)], World(3, 4, 3))
    assert share.lane_hosts.tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    assert share.machine_lanes.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("start", "row", "end"), [(0, 5, 0), (0, 6, 6), (0, 17, 12), (4, 17, 16), (4, 3, 4)]
)
def test_whole_batches_end_before_a_row(start: int, row: int, end: int) -> None:
    share = share_rows([Lanes(8, 100, None)], World(0, 2, 2), StepShape(6, 2))
    assert share.end_whole_batches(start, row) == end


@given(
    world_size=st.integers(1, 70),
    more=st.integers(0, 600),
    micro_batch=st.none() | st.integers(1, 20),
)
def test_all_batches_of_a_step_are_equally_large_and_have_room_for_its_rows(
    world_size: int, more: int, micro_batch: int | None
) -> None:
    shape = StepShape(world_size + more, world_size, micro_batch)
    fillers = shape.num_batches * shape.batch_rows - shape.rank_rows
    assert 0 <= fillers < shape.num_batches
    assert shape.rank_rows * world_size >= shape.global_batch > (shape.rank_rows - 1) * world_size
    if micro_batch is None:
        assert shape.num_batches == 1
    else:
        assert shape.batch_rows <= micro_batch
        assert (shape.num_batches - 1) * micro_batch < shape.rank_rows, "as few as possible"


def test_a_step_with_fewer_rows_than_ranks_is_refused() -> None:
    message = "global_batch_size is 7, but there are 8 ranks, so some would have no rows"
    with pytest.raises(ValueError, match=message):
        StepShape(7, 8)


@given(
    world=WORLDS,
    global_batch=st.integers(12, 50),
    batch=st.integers(0, 50),
    num_workers=st.integers(1, 5),
)
def test_a_global_batch_falls_to_ranks_evenly_and_to_workers_by_lane(
    world: tuple[int, int], global_batch: int, batch: int, num_workers: int
) -> None:
    shares = list_shares(world, global_batch, num_workers)
    start = batch * shares[0].global_batch
    stop, seen = start + shares[0].global_batch, list[int]()
    for share in shares:
        rows = np.asarray(share.rank_rows(start, stop))
        assert len(rows) in (global_batch // world[0], shares[0].shape.rank_rows)
        parts = [share.worker_rows(worker, start, stop) for worker in range(num_workers)]
        assert sorted(np.concatenate(parts)) == rows.tolist()
        if share.is_even:
            for worker, part in enumerate(parts):
                assert np.isin(part % 24, share.own_lanes(worker)).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(start, stop))


@given(world=WORLDS, num_workers=st.integers(1, 4))
def test_a_lane_belongs_to_one_worker_of_one_rank(world: tuple[int, int], num_workers: int) -> None:
    lanes: list[int] = []
    for share in list_shares(world, world[0], num_workers):
        counts = [len(share.own_lanes(worker)) for worker in range(num_workers)]
        assert max(counts) - min(counts) <= 1
        for worker in range(num_workers):
            lanes += share.own_lanes(worker).tolist()
        if share.is_even:
            own = np.concatenate([share.own_lanes(worker) for worker in range(num_workers)])
            assert sorted(own) == list(range(share.index, 24, share.world_size))
    assert sorted(lanes) == list(range(24))


def test_a_node_touches_only_its_own_canonical_nodes() -> None:
    num_lanes, num_nodes, ranks_per_node = 48, 16, 3
    for num_hosts in (2, 4, 8):
        for rank in range(num_hosts * ranks_per_node):
            world = World(rank, num_hosts * ranks_per_node, ranks_per_node)
            lanes = Lanes(num_lanes, 10_000, None, num_nodes)
            own = {
                lanes.epoch_position(lane, ordinal)[1] % num_nodes
                for lane in range(world.index, num_lanes, world.size)
                for ordinal in range(9)
            }
            of_host = np.unique(
                lanes.nodes[rank // ranks_per_node :: num_hosts],
            ).tolist()
            assert own <= set(of_host)
            assert of_host == list(range(of_host[0], of_host[0] + num_nodes // num_hosts)), (
                "a host must have consecutive canonical nodes"
            )
