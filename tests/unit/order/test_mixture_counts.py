"""Row counts and row numbers of each lane match those from a plain list of a mixture's rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.order.mixture import Mixture
from cloudload.order.mixture_counts import count_rows, number_rows
from testkit.examples import EXAMPLES

WEIGHTS = st.tuples(*[st.sampled_from([0.0, 0.1, 1.0, 3.0])] * 3).filter(any)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2_000), max_size=3)))]
    return Mixture(("a", "b", "c"), tuple((first, draw(WEIGHTS)) for first in firsts))


@given(
    mixture=mixtures(),
    num_lanes=st.sampled_from([1, 7, 12, 60]),
    rows=st.lists(st.integers(0, 3_000), max_size=20),
)
def test_the_number_of_a_row_in_its_lane_is_that_of_the_rows_before_it(
    mixture: Mixture, num_lanes: int, rows: list[int]
) -> None:
    every = np.arange(3_001)
    of_every = mixture.components(every, num_lanes)
    components, numbers = number_rows(mixture, num_lanes, 0, np.array(rows, np.int64))
    for row, component, number in zip(rows, components, numbers, strict=True):
        assert component == of_every[row]
        is_same = (of_every[:row] == component) & (every[:row] % num_lanes == row % num_lanes)
        assert number == is_same.sum()


@settings(max_examples=EXAMPLES)
@given(mixture=mixtures(), num_lanes=st.sampled_from([3, 12]), start=st.integers(0, 10**7))
def test_far_apart_rows_are_counted_as_listed_ones(
    mixture: Mixture, num_lanes: int, start: int
) -> None:
    stop = start + (1 << 22) + 1  # one row more than `count_rows` enumerates
    counted = count_rows(mixture, num_lanes, start, stop)
    middle = (start + stop) // 2
    listed = count_rows(mixture, num_lanes, start, middle)
    assert (counted == listed + count_rows(mixture, num_lanes, middle, stop)).all()
