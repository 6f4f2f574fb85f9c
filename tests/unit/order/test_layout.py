"""By default, the numbers of lanes and canonical nodes depend only on the data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloudload.config import RowsConfig, Stream
from cloudload.order.lanes import Layout, resolve_layout


@pytest.mark.parametrize(
    ("num_samples", "num_shards", "lanes", "nodes"),
    [
        (1, 1, 12, 1),
        (500, 2, 12, 1),
        (1_000, 63, 60, 1),
        (20_000, 64, 240, 2),
        (400_000, 1_000, 960, 16),
        (10_000_000, 2_047, 3840, 32),
        (10_000_000, 2_048, 3840, 64),
        (10_000_000, 100_000, 3840, 64),
    ],
)
def test_defaults_follow_from_the_data_alone(
    num_samples: int, num_shards: int, lanes: int, nodes: int
) -> None:
    layout = resolve_layout(RowsConfig((Stream("x"),), 8), [(num_samples, num_shards)])
    assert (layout.num_lanes, layout.canonical_nodes) == (lanes, (nodes,))


@given(st.integers(1, 10**7), st.integers(1, 10**5), st.none() | st.integers(1, 50))
def test_whatever_the_data_the_defaults_fit_together(
    num_samples: int, num_shards: int, nodes: int | None
) -> None:
    assume(num_shards <= num_samples and (nodes is None or nodes <= num_samples))
    layout = resolve_layout(
        RowsConfig((Stream("x"),), 8, num_canonical_nodes=nodes), [(num_samples, num_shards)]
    )
    [found] = layout.canonical_nodes
    assert layout.num_lanes % found == 0
    assert found <= num_samples


def layout(sizes: list[tuple[int, int]], saved: Layout | None = None, **config: Any) -> Layout:
    """The layout of components, each of some documents and shards."""
    return resolve_layout(RowsConfig((Stream("x"),), 8, **config), sizes, saved)


@pytest.mark.parametrize(
    ("lanes", "documents_per_lane"), [(60, 16), (120, 30), (240, 60), (480, 120), (3840, 256)]
)
def test_a_number_of_lanes_needs_some_documents_per_lane(
    lanes: int, documents_per_lane: int
) -> None:
    least = lanes * documents_per_lane
    assert layout([(least, 1)]).num_lanes == lanes
    assert layout([(least - 1, 1)]).num_lanes == (lanes // 2 if lanes > 60 else 12)


def test_the_documents_of_all_components_count_for_the_lanes() -> None:
    assert layout([(900, 1), (60, 1)]).num_lanes == 60
    assert layout([(900, 1), (59, 1)]).num_lanes == 12


def test_each_component_has_canonical_nodes_for_its_shards_and_documents() -> None:
    shards = [64, 63, 10**6, 128]
    found = layout([(10**6, shards[0]), (10**6, shards[1]), (10**6, shards[2]), (3, shards[3])])
    assert found.canonical_nodes == (2, 1, 64, 2)
    assert layout([(10**6, 10**4)], num_lanes=36).canonical_nodes == (4,)
    assert layout([(10**6, 10**4)], num_lanes=7).canonical_nodes == (1,)


def test_a_shuffle_block_has_the_documents_of_four_shards_but_at_least_two() -> None:
    assert layout([(100, 10), (50, 1), (50, 50), (7, 100)]).shuffle_block_sizes == (40, 200, 4, 2)
    assert layout([(100, 10), (50, 1)], shuffle_block_size=99).shuffle_block_sizes == (99, 99)


@pytest.mark.parametrize(
    ("nodes", "lanes", "canonical_nodes"),
    [(8, 24, (8, 8)), (7, 84, (7, 7)), (60, 60, (60, 30)), (64, 192, (64, 32))],
)
def test_lanes_are_a_multiple_of_the_canonical_nodes_that_the_config_sets(
    nodes: int, lanes: int, canonical_nodes: tuple[int, ...]
) -> None:
    """A component with fewer documents has the largest divisor that its documents allow."""
    found = layout([(100, 10), (50, 1)], num_canonical_nodes=nodes)
    assert (found.num_lanes, found.canonical_nodes) == (lanes, canonical_nodes)
    assert layout([(10**6, 10)], num_canonical_nodes=nodes).num_lanes == (
        84 if nodes == 7 else 3840
    )


def test_more_canonical_nodes_than_documents_are_refused() -> None:
    assert layout([(3, 1), (1, 1)], num_canonical_nodes=4).canonical_nodes == (2, 1)
    with pytest.raises(
        ValueError,
        match=r"^num_canonical_nodes is 5, but an epoch has only 4 documents. Use 4 or fewer$",
    ):
        layout([(3, 1), (1, 1)], num_canonical_nodes=5)


def test_a_saved_layout_replaces_the_defaults_but_not_the_config() -> None:
    saved = Layout(36, (4,), (77,))
    assert layout([(100, 10)], saved) == saved
    assert layout([(100, 10)], saved, num_lanes=60) == Layout(60, (4,), (77,))
    assert layout([(100, 10)], saved, num_canonical_nodes=6) == Layout(36, (6,), (77,))
    assert layout([(100, 10)], saved, shuffle_block_size=5) == Layout(36, (4,), (5,))


def test_a_component_that_is_new_on_resume_has_defaults() -> None:
    saved = Layout(36, (1,), (77,))
    assert layout([(100, 10), (9_000, 300)], saved) == Layout(36, (1, 4), (77, 120))
