"""`end_streams` ends each stream at the same row as a row-by-row walk."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.mixture import Mixture
from cloudload.order.mixture_counts import MixtureCounter
from cloudload.run.lengths.mixture_search import end_streams
from cloudload.system.arrays import NEVER
from tests.unit.order.test_mixture_counts import WEIGHTS, mixtures

LEFT = st.tuples(*[st.one_of(st.none(), st.integers(0, 9), st.integers(0, 300))] * 3)


@given(
    mixture=mixtures(),
    lanes=st.sampled_from([(1, None), (1, 0), (7, None), (7, 4), (12, None), (12, 0), (12, 11)]),
    start=st.integers(0, 2_500),
    component=st.integers(0, 2),
    number=st.integers(0, 300),
)
def test_a_row_of_a_walk_is_found_by_its_number(
    mixture: Mixture, lanes: tuple[int, int | None], start: int, component: int, number: int
) -> None:
    num_lanes, lane = lanes
    walk = MixtureCounter(mixture, num_lanes, component, lane)
    rows = np.arange(start, start + 8_000)
    rows = rows[mixture.components(rows, num_lanes) == component]
    rows = rows if lane is None else rows[rows % num_lanes == lane]
    assert walk.count(start, start + 8_000) == len(rows)
    found = walk.find(start, number)
    if number < len(rows):
        assert found == rows[number]
    else:
        assert found >= start + 8_000


def walk_slowly(
    mixture: Mixture, num_lanes: int, start: int, left: list[int | None], stops_first: bool
) -> tuple[list[int], int]:
    """Return the stream of each row, and the row at which the run ends, by walking row by row.

    The walk stops after 600 rows. If the run has not ended by then, the end is `NEVER`.
    """
    rows: list[int] = []
    entries = [(max(row, start), weights) for row, weights in mixture.schedule if row >= start]
    entries.insert(0, (start, mixture.weights_at(start)))
    current = 0
    while len(rows) < 600:
        row = start + len(rows)
        while current + 1 < len(entries) and entries[current + 1][0] <= row:
            current += 1
        weights = entries[current][1]
        if stops_first and any(w and n == 0 for w, n in zip(weights, left, strict=True)):
            return rows, row
        live = tuple(w * (n != 0) for w, n in zip(weights, left, strict=True))
        if not any(live):
            if current + 1 == len(entries):
                return rows, row
            current += 1
            continue
        stream = int(Mixture(mixture.names, ((0, live),)).components(np.array([row]), num_lanes)[0])
        rows.append(stream)
        if (number := left[stream]) is not None:
            left[stream] = number - 1
            if stops_first and number == 1:
                return rows, row + 1
    return rows, NEVER


@given(
    mixture=mixtures(),
    num_lanes=st.sampled_from([1, 12]),
    start=st.sampled_from([0, 0, 500]),
    left=LEFT,
    stops_first=st.booleans(),
)
def test_streams_end_where_a_walk_from_row_to_row_ends_them(
    mixture: Mixture,
    num_lanes: int,
    start: int,
    left: tuple[int | None, ...],
    stops_first: bool,
) -> None:
    rows, end = walk_slowly(mixture, num_lanes, start, list(left), stops_first)
    found = end_streams(mixture, num_lanes, start, left, stops_first=stops_first)
    if end < NEVER:
        assert found.end == end
    else:
        assert found.end >= start + 600
    taken = found.mixture.components(np.arange(start, start + len(rows)), num_lanes)
    assert taken.tolist() == rows
    for stream, number in enumerate(left):
        if found.ends[stream] < start + len(rows):
            assert rows[: found.ends[stream] - start].count(stream) == number


def test_a_stream_without_weight_has_no_end() -> None:
    mixture = Mixture(("a", "b"), ((0, (1.0, 0.0)),))
    found = end_streams(mixture, 1, 0, [4, 9], stops_first=False)
    assert (found.ends, found.end) == ((4, NEVER), 4)


@given(weights=WEIGHTS)
def test_settling_again_from_a_later_row_changes_nothing(weights: tuple[float, ...]) -> None:
    mixture = Mixture(("a", "b", "c"), ((0, weights),))
    left = [40, 20, 10]
    found = end_streams(mixture, 12, 0, left, stops_first=False)
    if found.end <= 30:
        return
    after = [n - MixtureCounter(found.mixture, 12, s).count(0, 30) for s, n in enumerate(left)]
    again = end_streams(found.mixture, 12, 30, after, stops_first=False)
    assert (again.mixture, again.end) == (found.mixture, found.end)
