"""By default, the numbers of lanes and canonical nodes depend only on the data."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloudload.config import RowsConfig, Stream
from cloudload.order.layout import resolve_layout


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
