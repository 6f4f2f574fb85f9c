"""The step from row to row keeps the rows of every stream evenly spread."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.order.mixture import find_step

LANES = [1, 7, 12, 60, 240, 960, 1000, 3840, 8192]


@pytest.mark.parametrize(("walk", "most"), [("run", 7), ("lane", 10)])
def test_no_stretch_of_up_to_1_000_rows_is_further_off_than_the_guide_says(
    walk: str, most: int
) -> None:
    """An arc deviates by at most 1 plus the spread of how far the sorted points are ahead."""
    stride = find_step(960) * (1 if walk == "run" else 960) % 2**64
    points = np.arange(1000, dtype=np.uint64) * np.uint64(stride) / 2.0**64
    ahead = [np.arange(rows) - rows * np.sort(points[:rows]) for rows in range(1, 1001)]
    spreads = [1 + each.max() - each.min() for each in ahead]
    assert most - 1 < max(spreads) < most
    assert spreads[-1] <= 2


@pytest.mark.parametrize("num_lanes", [*LANES, 36, 100, 500, 4096, 100_000])
@pytest.mark.parametrize("walk", ["run", "lane"])
def test_no_weights_could_be_further_off(num_lanes: int, walk: str) -> None:
    stride = find_step(num_lanes) * (1 if walk == "run" else num_lanes)
    points = np.array(sorted(row * stride % 2**64 >> 12 for row in range(1000)))
    between = np.arange(1000)[:, None] - np.arange(1000)
    expected = (points[:, None] - points) * 1000
    longer = between > 0
    most = ((between + 1) * 2**52 - expected)[longer].max() / 2**52
    fewest = (expected - (between - 1) * 2**52)[longer].max() / 2**52
    assert max(most, fewest) <= 2, "an arc must have at most 2 rows more or fewer than its share"
