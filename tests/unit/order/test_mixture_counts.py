"""Row counts and row numbers of each lane match those from a plain list of a mixture's rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.mixture import Mixture
from cloudload.order.mixture_counts import (
    MixtureCounter,
    count_lane_rows,
    count_rows,
    floor_sum,
    list_entries,
    rows_in_lanes,
)
from cloudload.system.arrays import NEVER

WEIGHTS = st.tuples(*[st.sampled_from([0.0, 0.1, 1.0, 3.0])] * 3).filter(any)


MIXTURE = Mixture(("a", "b"), ((0, (2.0, 1.0)), (6, (0.0, 1.0)), (9, (1.0, 1.0))))
"""With 2 lanes, rows 0 to 19 are of streams a a a b a a | b b b | b b a a b a a b b a a."""


@pytest.mark.parametrize(
    ("start", "stop", "counts"),
    [
        (0, 12, [[3, 3], [3, 3]]),
        (5, 10, [[0, 1], [2, 2]]),
        (6, 9, [[0, 0], [2, 1]]),
        (9, 9, [[0, 0], [0, 0]]),
    ],
)
def test_rows_are_counted_by_stream_and_lane(
    start: int, stop: int, counts: list[list[int]]
) -> None:
    assert count_rows(MIXTURE, 2, start, stop).tolist() == counts


def test_without_a_mixture_rows_are_counted_by_lane() -> None:
    assert count_rows(Mixture(("a",), ((0, (1.0,)),)), 4, 3, 9).tolist() == [[2, 1, 1, 2]]


@pytest.mark.parametrize(
    ("start", "stop", "counts"),
    [
        (0, 0, [0, 0, 0, 0]),
        (0, 1, [1, 0, 0, 0]),
        (3, 9, [2, 1, 1, 2]),
        (4, 8, [1, 1, 1, 1]),
        (5, 6, [0, 1, 0, 0]),
    ],
)
def test_a_lane_has_every_fourth_row(start: int, stop: int, counts: list[int]) -> None:
    assert count_lane_rows(4, start, stop).tolist() == counts


def test_rows_are_numbered_within_their_lane_and_stream() -> None:
    """Row 4 is the third row of stream a in lane 0, and row 9 the third row of b in lane 1."""
    found = rows_in_lanes(MIXTURE, 2, 0, np.array([9, 4, 0]))
    assert [array.tolist() for array in found] == [[1, 0, 0], [2, 2, 0]]
    from_row_3 = rows_in_lanes(MIXTURE, 2, 3, np.array([9, 4, 3]))
    assert [array.tolist() for array in from_row_3] == [[1, 0, 1], [2, 0, 0]]


def test_without_a_mixture_rows_are_numbered_within_their_lane() -> None:
    one = Mixture(("a",), ((0, (1.0,)),))
    for start, numbers in [(0, [1, 2]), (3, [0, 1])]:
        found = rows_in_lanes(one, 4, start, np.array([4, 9]))
        assert [array.tolist() for array in found] == [[0, 0], numbers]


@pytest.mark.parametrize(
    ("stream", "lane", "rows"),
    [
        (0, None, [0, 1, 2, 4, 5, 11]),
        (1, None, [3, 6, 7, 8, 9, 10, 13]),
        (0, 0, [0, 2, 4, 12]),
        (1, 1, [3, 7, 9, 13]),
    ],
    ids=str,
)
def test_a_walk_finds_and_counts_the_rows_of_its_stream(
    stream: int, lane: int | None, rows: list[int]
) -> None:
    walk = MixtureCounter(MIXTURE, 2, stream, lane)
    assert [walk.find(0, number) for number in range(len(rows))] == rows
    assert [walk.find(rows[1], number) for number in range(len(rows) - 1)] == rows[1:]
    for number, row in enumerate(rows):
        assert [walk.count(0, row), walk.count(0, row + 1)] == [number, number + 1]


def test_a_walk_whose_stream_has_no_later_weight_ends() -> None:
    ending = Mixture(("a", "b"), ((0, (1.0, 1.0)), (6, (0.0, 1.0))))
    walk = MixtureCounter(ending, 1, 0)
    number = walk.count(0, 6)
    assert walk.find(0, number - 1) < 6
    assert walk.find(0, number) == walk.find(6, 0) == NEVER


def test_an_entry_ends_where_the_next_one_begins() -> None:
    assert list_entries(MIXTURE) == [
        (0, 6, (2.0, 1.0)),
        (6, 9, (0.0, 1.0)),
        (9, NEVER, (1.0, 1.0)),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5, 7, 3, 2), 4),  # ⌊2/7⌋ + ⌊5/7⌋ + ⌊8/7⌋ + ⌊11/7⌋ + ⌊14/7⌋
        ((4, 3, 10, 5), 25),  # 1 + 5 + 8 + 11
        ((1, 5, 2, 11), 2),
        ((0, 5, 2, 1), 0),
    ],
)
def test_a_floor_sum_of_a_few_terms(arguments: tuple[int, int, int, int], expected: int) -> None:
    assert floor_sum(*arguments) == expected


@given(st.integers(0, 60), st.integers(1, 99), st.integers(0, 300), st.integers(0, 300))
def test_a_floor_sum_is_the_sum_of_its_terms(
    number: int, modulus: int, stride: int, first: int
) -> None:
    terms = [(first + i * stride) // modulus for i in range(number)]
    assert floor_sum(number, modulus, stride, first) == sum(terms)


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
    components, numbers = rows_in_lanes(mixture, num_lanes, 0, np.array(rows, np.int64))
    for row, component, number in zip(rows, components, numbers, strict=True):
        assert component == of_every[row]
        is_same = (of_every[:row] == component) & (every[:row] % num_lanes == row % num_lanes)
        assert number == is_same.sum()


def test_far_apart_rows_are_counted_as_listed_ones() -> None:
    start, stop = 4, 4 + (1 << 22) + 1  # one row more than `count_rows` enumerates
    middle = (start + stop) // 2
    listed = sum(count_rows(MIXTURE, 12, *part) for part in ((start, middle), (middle, stop)))
    assert count_rows(MIXTURE, 12, start, stop).tolist() == np.array(listed).tolist()


@given(mixture=mixtures(), num_lanes=st.sampled_from([3, 12]), start=st.integers(0, 10**7))
def test_far_apart_rows_are_counted_as_walks_count_them(
    mixture: Mixture, num_lanes: int, start: int
) -> None:
    stop = start + 10**9
    counts = count_rows(mixture, num_lanes, start, stop)
    assert counts.sum(axis=0).tolist() == count_lane_rows(num_lanes, start, stop).tolist()
    for stream in range(3):
        assert counts[stream].sum() == MixtureCounter(mixture, num_lanes, stream).count(start, stop)
        walk = MixtureCounter(mixture, num_lanes, stream, lane=2)
        assert counts[stream, 2] == walk.count(start, stop)
