"""The bins of a distribution are bounded by powers of two, and count every value once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.inspect import Bin, Distribution


def test_the_bins_double_and_have_no_gaps() -> None:
    found = Distribution.of(np.array([3, 5, 6, 7, 12, 40]))
    assert found is not None
    assert found.bins == (Bin(2, 4, 1), Bin(4, 8, 3), Bin(8, 16, 1), Bin(16, 32, 0), Bin(32, 64, 1))
    assert (found.least, found.median, found.mean, found.most) == (3, 6, 12.2, 40)


def test_zero_has_its_own_bin() -> None:
    found = Distribution.of(np.array([0, 0, 1]))
    assert found is not None
    assert found.bins == (Bin(0, 1, 2), Bin(1, 2, 1))


def test_no_values_have_no_distribution() -> None:
    assert Distribution.of(np.empty(0, np.int64)) is None


@given(st.lists(st.integers(0, 1 << 32), min_size=1))
def test_every_value_is_in_the_bin_of_its_range(values: list[int]) -> None:
    found = Distribution.of(np.array(values, np.int64))
    assert found is not None
    assert sum(each.count for each in found.bins) == len(values)
    for each in found.bins:
        assert each.count == sum(each.start <= value < each.stop for value in values)
    assert all(
        one.stop == next_.start for one, next_ in zip(found.bins, found.bins[1:], strict=False)
    )
    assert found.median == sorted(values)[(len(values) - 1) // 2]
