"""Each document belongs to one lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloudload.order.lanes import Lanes
from cloudload.system import NEVER


def positions(lanes: Lanes, lane: int, number: int) -> list[tuple[int, int]]:
    """The (epoch, position) of the first documents of a lane."""
    return [lanes.epoch_position(lane, ordinal) for ordinal in range(number)]


def test_eleven_documents_in_four_lanes() -> None:
    """The stride is 12, so that every lane starts every epoch alike. Position 11 is a hole."""
    lanes = Lanes(4, 11, None)
    assert lanes.stride == 12
    assert positions(lanes, 1, 4) == [(0, 1), (0, 5), (0, 9), (1, 1)]
    assert positions(lanes, 3, 4) == [(0, 3), (0, 7), (0, 11), (1, 3)]


def test_fewer_documents_than_lanes_are_read_in_turn_by_all_lanes() -> None:
    lanes = Lanes(4, 3, None)
    assert lanes.stride == 3
    assert positions(lanes, 0, 4) == [(0, 0), (1, 1), (2, 2), (4, 0)]
    assert positions(lanes, 3, 3) == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("num_positions", "stride"), [(3, 3), (4, 4), (5, 8), (8, 8), (9, 12)], ids=str
)
def test_an_epoch_is_as_long_as_its_documents_rounded_up_to_the_lanes(
    num_positions: int, stride: int
) -> None:
    assert Lanes(4, num_positions, None).stride == stride
    assert Lanes(4, num_positions, None).nodes.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("num_positions", "epochs", "ends"),
    [
        (11, 2, [6, 6, 6, 6]),
        (12, 1, [3, 3, 3, 3]),
        (3, 2, [2, 2, 1, 1]),
        (1, 2, [1, 1, 0, 0]),
        (3, None, [NEVER] * 4),
    ],
    ids=str,
)
def test_a_lane_ends_after_the_last_epoch(
    num_positions: int, epochs: int | None, ends: list[int]
) -> None:
    lanes = Lanes(4, num_positions, epochs)
    assert lanes.ends.tolist() == ends


@pytest.mark.parametrize(
    ("epoch", "count", "ordinals"),
    [
        (0, 0, [0, 0, 0, 0]),
        (0, 2, [1, 1, 0, 0]),
        (0, 5, [2, 1, 1, 1]),
        (0, 11, [3, 3, 3, 2]),
        (1, 0, [3, 3, 3, 3]),
        (1, 5, [5, 4, 4, 4]),
    ],
    ids=str,
)
def test_after_some_positions_each_lane_is_at_its_next_one(
    epoch: int, count: int, ordinals: list[int]
) -> None:
    assert Lanes(4, 11, None).ordinals_after(epoch, count).tolist() == ordinals


@pytest.mark.parametrize(
    ("num_nodes", "nodes"),
    [
        (1, [0] * 12),
        (2, [0, 1] * 6),
        (3, [0, 1, 2] * 4),
        (4, [0, 2, 1, 3] * 3),
        (6, [0, 3, 1, 4, 2, 5] * 2),
        (12, [0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11]),
    ],
    ids=str,
)
def test_lanes_read_nodes_in_reversed_digits(num_nodes: int, nodes: list[int]) -> None:
    """Every second lane then reads the first half of the nodes, every fourth lane a quarter."""
    lanes = Lanes(12, 100, None, num_nodes)
    assert lanes.nodes.tolist() == nodes
    assert (lanes.first_positions - nodes).tolist() == [
        lane // num_nodes * num_nodes for lane in range(12)
    ]


@given(num_samples=st.integers(1, 100), num_nodes=st.sampled_from([1, 3, 4, 12]))
def test_many_documents_are_found_as_each_is_alone(num_samples: int, num_nodes: int) -> None:
    lanes = Lanes(12, num_samples, None, num_nodes)
    some, ordinals = np.repeat(np.arange(12), 20), np.tile(np.arange(20), 12)
    epochs, found = lanes.epoch_positions(some, ordinals)
    assert [*zip(epochs.tolist(), found.tolist(), strict=True)] == [
        lanes.epoch_position(lane, ordinal)
        for lane, ordinal in zip(some.tolist(), ordinals.tolist(), strict=True)
    ]


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
        for ordinal in range(int(lanes.ends[lane]))
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
