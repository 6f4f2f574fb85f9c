"""The rows at which a mixture's streams end are those of a walk that takes one row at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.order.mixture import Mixture
from cloudload.order.mixture_counts import MixtureCounter
from cloudload.run.lengths.mixture_search import end_streams, find_ending, find_first_dry
from cloudload.system.arrays import NEVER
from testkit.best_fit_oracle import choose_stream
from testkit.examples import EXAMPLES
from testkit.tiny_runs import TinyRun
from tests.unit.order.test_mixture_counts import WEIGHTS, mixtures

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8)
PACKINGS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"packing": "concat"},
        {"packing": "one_per_row"},
        {"packing": "one_per_row", "overflow": "rows"},
    ]
)


@dataclass
class WalkedEnds:
    """The rows at which streams and their lanes end, found by taking one row at a time."""

    stream_ends: list[int]
    lane_ends: list[int]
    end: int


def walk(run: TinyRun, lane_units: list[list[int]], stop: int = 400) -> WalkedEnds:
    """Take rows until the run ends. `lane_units` are the units of each lane, by stream."""
    config, row_units = run.recipe.config, run.recipe.packing.row_units
    weights = run.recipe.mixture.schedule[0][1]
    left, lanes = [sum(units) for units in lane_units], [list(units) for units in lane_units]
    stream_ends = [0 if not units else NEVER for units in left]
    lane_ends, row = [NEVER if units else 0 for units in left], 0
    while row < stop:
        over = [not units for units, weight in zip(left, weights, strict=True) if weight]
        if any(over) if config.stopping == "first" else all(over):
            break
        live = [weight * (units > 0) for weight, units in zip(weights, left, strict=True)]
        stream, lane = choose_stream(row, run.recipe.num_lanes, live), row % run.recipe.num_lanes
        if lane_ends[stream] == NEVER and lanes[stream][lane] < row_units:
            lane_ends[stream] = row  # this lane cannot fill the row, so the tail does
        lanes[stream][lane] -= row_units
        left[stream] = max(0, left[stream] - row_units)
        row += 1
        if not left[stream]:
            stream_ends[stream] = row
    # a stream whose lanes fill all of its rows has no tail
    lane_ends = [min(each, end, row) for each, end in zip(lane_ends, stream_ends, strict=True)]
    return WalkedEnds(stream_ends, lane_ends, row)


def units_of_lanes(run: TinyRun) -> list[list[int]]:
    """The units of each lane, by stream."""
    return [
        walker.count_units(cursors).tolist()
        for walker, cursors in zip(run.lengths.walkers, run.start.cursors, strict=True)
    ]


@given(
    first=LENGTHS,
    second=LENGTHS,
    options=PACKINGS,
    weights=st.sampled_from([[1, 1], [3, 1]]),
    stopping=st.sampled_from(["all", "first"]),
)
def test_streams_end_where_a_walk_of_single_rows_ends_them(
    first: list[int],
    second: list[int],
    options: dict[str, Any],
    weights: list[float],
    stopping: str,
) -> None:
    run = TinyRun(first, second, proportions=weights, epochs=2, stopping=stopping, **options)
    expected = walk(run, units_of_lanes(run))
    try:
        found = find_ending(run.recipe, run.lengths.walkers, run.start)
    except DatasetError:
        assert not expected.end
        return
    assert found.end == expected.end
    assert found.lane_ends == tuple(expected.lane_ends)
    ends = zip(found.stream_ends, expected.stream_ends, strict=True)
    assert all(other in (one, NEVER) for one, other in ends)


@given(
    first=LENGTHS.filter(any),
    second=LENGTHS.filter(any),
    stopping=st.sampled_from(["all", "first"]),
    packing=st.sampled_from(["concat", "best_fit"]),
    at=st.floats(0, 1),
)
@settings(max_examples=2 * EXAMPLES)
def test_from_any_later_position_the_ends_are_the_same(
    first: list[int], second: list[int], stopping: str, packing: str, at: float
) -> None:
    run = TinyRun(first, second, proportions=[2, 1], epochs=2, stopping=stopping, packing=packing)
    tails = run.lengths.find_tails(run.start)
    whole, ended = tails.ending, tails.recipe.mixture
    row = round(at * whole.end)
    position = run.lengths.advance(run.start, row)
    assert position is not None
    recipe = replace(run.recipe, mixture=ended.resume(ended, row))
    if row == whole.end:
        return
    found = find_ending(recipe, run.lengths.walkers, position)
    assert found.end == whole.end
    for stream, end in enumerate(whole.stream_ends):
        if end > row:  # a stream that has ended has weight 0 from then on
            assert found.stream_ends[stream] == end
            if whole.lane_ends[stream] >= row:
                assert found.lane_ends[stream] == whole.lane_ends[stream]


def test_after_the_shorter_stream_the_longer_one_has_all_rows() -> None:
    run = TinyRun([5] * 6, [5] * 2, proportions=[1, 1], epochs=1)
    found = find_ending(run.recipe, run.lengths.walkers, run.start)
    rows = run.recipe.components_of(np.arange(8)).tolist()
    second = [row for row, stream in enumerate(rows) if stream == 1][1] + 1
    assert found.stream_ends == (8, second)
    assert found.end == 8
    assert found.mixture.schedule == ((0, (1.0, 1.0)), (second, (1.0, 0.0)))


def test_with_stopping_first_the_run_ends_with_the_shorter_stream() -> None:
    run = TinyRun([5] * 6, [5] * 2, proportions=[1, 1], epochs=1, stopping="first")
    found = find_ending(run.recipe, run.lengths.walkers, run.start)
    assert found.end == found.stream_ends[1] < 8
    assert found.stream_ends[0] == NEVER


def test_a_stream_without_max_epochs_never_ends() -> None:
    run = TinyRun([5] * 6, [5] * 2, proportions=[1, 1], max_epochs=[None, 1])
    found = find_ending(run.recipe, run.lengths.walkers, run.start)
    assert found.stream_ends[0] == found.end == found.lane_ends[0] == NEVER
    assert found.stream_ends[1] < 8


def test_a_mixture_of_streams_without_tokens_is_refused_with_their_names() -> None:
    run = TinyRun([0, 0], [0], proportions=[1, 1], epochs=1)
    with pytest.raises(DatasetError, match=r"no document of a, b has any tokens.*stopping='all'"):
        find_ending(run.recipe, run.lengths.walkers, run.start)


def test_with_stopping_first_the_stream_without_tokens_is_named() -> None:
    run = TinyRun([5, 5], [0], proportions=[1, 1], epochs=1, stopping="first")
    with pytest.raises(DatasetError, match=r"no document of b has any tokens.*stopping='first'"):
        find_ending(run.recipe, run.lengths.walkers, run.start)


def test_with_best_fit_open_rows_count_toward_a_streams_rows() -> None:
    """Documents of 3 tokens fill no row of 5, so each has a row of the tail."""
    run = TinyRun([3] * 4, [5] * 2, proportions=[1, 1], epochs=1, packing="best_fit")
    found = find_ending(run.recipe, run.lengths.walkers, run.start)
    assert found.end == 6


def test_with_best_fit_a_stream_whose_lane_fills_all_rows_has_no_tail() -> None:
    run = TinyRun([5] * 4, [5] * 4, proportions=[1, 1], epochs=1, packing="best_fit", num_lanes=1)
    tails = run.lengths.find_tails(run.start)
    assert tails.ending.end == 8
    assert tails.ending.lane_ends == tails.ending.stream_ends
    assert [tails.tail(stream).num_rows for stream in (0, 1)] == [0, 0]


@given(
    weights=st.sampled_from([(1.0, 1.0), (3.0, 1.0)]),
    start=st.integers(0, 50),
    last=st.integers(0, 120),
    lane_rows=st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_the_first_dry_row_is_the_first_for_which_a_lane_has_no_row_left(
    weights: tuple[float, float], start: int, last: int, lane_rows: list[int]
) -> None:
    mixture = Mixture(("a", "b"), ((0, weights),))
    left, expected = list(lane_rows), last
    for row, stream in enumerate(mixture.components(np.arange(last), 3).tolist()):
        if row >= start and stream == 0:
            if not left[row % 3]:
                expected = row
                break
            left[row % 3] -= 1
    assert (
        find_first_dry(MixtureCounter(mixture, 3, 0), start, last, np.array(lane_rows)) == expected
    )


def test_a_search_begins_where_the_cursors_are() -> None:
    run = TinyRun([5], [5], proportions=[1, 1], epochs=1)
    behind = replace(run.start, rows=3)
    assert find_ending(run.recipe, run.lengths.walkers, behind).start == 0


# ---------------------------------------------------------------- the ends of streams


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
