"""Each document belongs to one lane, and each lane to one rank and one of its workers."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from cloudload.loading.delivery.world import World
from cloudload.order.lanes import Lanes, rank_rows, worker_of_rows


@given(
    num_nodes=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    lanes_of_node=st.integers(1, 5),
    num_samples=st.integers(1, 100),
    epochs=st.integers(1, 3),
)
def test_lanes_share_out_every_document_of_every_epoch_once(
    num_nodes: int, lanes_of_node: int, num_samples: int, epochs: int
) -> None:
    num_lanes = num_nodes * lanes_of_node
    lanes = Lanes(num_lanes, num_samples, epochs, num_nodes)
    places = [
        lanes.epoch_position(lane, ordinal)
        for lane in range(num_lanes)
        for ordinal in range(lanes.end(lane) or 0)
    ]
    documents = sorted(place for place in places if place[1] < num_samples)
    assert documents == [
        (epoch, position) for epoch in range(epochs) for position in range(num_samples)
    ]


@given(num_lanes=st.integers(1, 40), num_samples=st.integers(1, 100))
def test_with_a_document_for_each_a_lane_keeps_to_its_positions(
    num_lanes: int, num_samples: int
) -> None:
    assume(num_samples >= num_lanes)
    lanes = Lanes(num_lanes, num_samples, None)
    for lane in range(num_lanes):
        assert {lanes.epoch_position(lane, ordinal)[1] % num_lanes for ordinal in range(30)} == {
            lane
        }


@given(num_lanes=st.integers(1, 40), num_samples=st.integers(1, 100))
def test_every_lane_has_documents_for_ever(num_lanes: int, num_samples: int) -> None:
    lanes = Lanes(num_lanes, num_samples, None)
    for lane in range(num_lanes):
        assert any(lanes.epoch_position(lane, ordinal)[1] < num_samples for ordinal in range(2))


@given(
    world=st.sampled_from([(1, 1), (4, 4), (8, 4), (12, 4), (6, 3), (6, 4)]),
    batch_size=st.integers(1, 9),
    start=st.integers(0, 500),
    num_workers=st.integers(1, 5),
)
def test_a_global_batch_falls_to_ranks_evenly_and_to_workers_by_lane(
    world: tuple[int, int], batch_size: int, start: int, num_workers: int
) -> None:
    size, ranks_per_node = world
    stop = start + batch_size * size
    seen: list[int] = []
    for rank in range(size):
        index = World(rank, size, ranks_per_node).index
        rows = rank_rows(start, stop, index, size)
        assert len(rows) == batch_size
        seen += rows
        own = list(World(rank, size, ranks_per_node).lanes(24))[:]
        workers = worker_of_rows(rows, 24, size, num_workers).tolist()
        assert all(
            row % 24 in own[worker::num_workers] for row, worker in zip(rows, workers, strict=True)
        )
    assert sorted(seen) == list(range(start, stop))


def test_a_node_touches_only_its_own_canonical_nodes() -> None:
    num_lanes, num_nodes, ranks_per_node = 48, 16, 3
    for num_hosts in (2, 4, 8):
        for rank in range(num_hosts * ranks_per_node):
            world = World(rank, num_hosts * ranks_per_node, ranks_per_node)
            lanes = Lanes(num_lanes, 10_000, None, num_nodes)
            own = {
                lanes.epoch_position(lane, ordinal)[1] % num_nodes
                for lane in world.lanes(num_lanes)
                for ordinal in range(9)
            }
            of_host = np.unique(
                lanes.nodes[rank // ranks_per_node :: num_hosts],
            ).tolist()
            assert own <= set(of_host)
            assert of_host == list(range(of_host[0], of_host[0] + num_nodes // num_hosts)), (
                "a host must have consecutive canonical nodes"
            )
