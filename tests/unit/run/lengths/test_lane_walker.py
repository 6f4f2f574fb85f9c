"""Lanes advance by lengths to where the reference packer is after the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.rows.packing.tables import Size
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.stats import COUNTS
from cloudload.system.arrays import Ints
from testkit.tiny_runs import TinyRun

LENGTHS = st.lists(st.integers(0, 12), min_size=2, max_size=30).filter(
    lambda lengths: any(lengths[::2]) and any(lengths[1::2]) and len(lengths) % 2 == 0
)
PACKINGS = st.sampled_from([("concat", "cut"), ("one_per_row", "cut"), ("one_per_row", "rows")])


def walker_of(run: TinyRun) -> LaneWalker:
    [walker] = run.lengths.walkers
    return walker


def cursors(*lanes: tuple[int, int, int]) -> Ints:
    return np.array(lanes, np.int64)


def count(*rows: int) -> Ints:
    return np.array(rows, np.int64)


def named(counts: Ints) -> dict[str, int]:
    """The statistics that are not 0, by name."""
    return {name: value for name, value in zip(COUNTS, counts.tolist(), strict=True) if value}


@given(lengths=LENGTHS, packing=PACKINGS, rows=st.lists(st.integers(0, 30), min_size=2, max_size=2))
def test_after_any_number_of_rows_the_cursor_is_that_of_the_packer(
    lengths: list[int], packing: tuple[str, str], rows: list[int]
) -> None:
    run = TinyRun(lengths, packing=packing[0], overflow=packing[1])
    found = walker_of(run).advance(cursors((0, 0, 0), (0, 0, 0)), count(*rows))
    tokens = documents = truncated = 0
    for lane, number in enumerate(rows):
        packed = run.naive.lane_rows(lane, number)
        ordinal, offset = packed[-1].cursor if packed else (0, 0)
        sizes = run.naive.documents(lane, ordinal + 1)
        assert found.cursors[lane].tolist() == [ordinal, offset, sizes[ordinal] if offset else 0]
        tokens += sum(stop - start for row in packed for _, start, stop, _ in row.pieces)
        documents += sum(size > 0 for size in sizes[:ordinal])
        if packing[1] == "cut" and packing[0] == "one_per_row":
            truncated += sum(max(0, size - 5) for size in sizes[:ordinal])
    counts = dict(zip(COUNTS, found.counts[0].tolist(), strict=True))
    assert (counts["tokens"], counts["documents"]) == (tokens, documents)
    assert counts["truncated"] == truncated
    assert counts["tokens"] + counts["padding"] == 5 * sum(rows)


@given(
    lengths=LENGTHS,
    packing=PACKINGS,
    steps=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    limits=st.sampled_from([(0, None), (4, None), (2, 6)]),
    are_streams=st.booleans(),
)
def test_two_steps_are_one_step_with_all_statistics(
    lengths: list[int],
    packing: tuple[str, str],
    steps: tuple[int, int],
    limits: tuple[int, int | None],
    are_streams: bool,
) -> None:
    (first, then), half = steps, len(lengths) // 2
    parts = [lengths[:half], lengths[half:]] if are_streams else [lengths]
    filters: dict[str, Any] = {"min_tokens": limits[0], "max_tokens": limits[1]}
    run = TinyRun(*parts, packing=packing[0], overflow=packing[1], **filters)
    walker, start = walker_of(run), cursors((0, 0, 0), (0, 0, 0))
    whole = walker.advance(start, count(first + then, first))
    if whole.is_dry.any():  # the limits may leave a lane without tokens
        return
    middle = walker.advance(start, count(first, first))
    rest = walker.advance(middle.cursors, count(then, 0))
    assert rest.cursors.tolist() == whole.cursors.tolist()
    assert (middle.counts + rest.counts).tolist() == whole.counts.tolist()


def test_two_rows_further_from_within_a_document() -> None:
    """The example of the module: 4 tokens of `a` are read; a b c d have 8, 4, 8 and 2."""
    run = TinyRun([8, 4, 8, 2], num_lanes=1)
    found = walker_of(run).advance(cursors((0, 4, 8)), count(2))
    assert found.cursors.tolist() == [[2, 2, 8]]
    assert named(found.counts[0]) == {"tokens": 10, "documents": 2}


def test_a_row_within_a_begun_document_moves_its_offset_only() -> None:
    found = walker_of(TinyRun([20], num_lanes=1)).advance(cursors((0, 5, 20)), count(2))
    assert found.cursors.tolist() == [[0, 15, 20]]
    assert named(found.counts[0]) == {"tokens": 10}


def test_a_lane_that_ends_a_row_with_a_document_is_before_the_next_one() -> None:
    found = walker_of(TinyRun([5, 0, 5], num_lanes=1)).advance(cursors((0, 0, 0)), count(1))
    assert found.cursors.tolist() == [[1, 0, 0]]
    assert named(found.counts[0]) == {"tokens": 5, "documents": 1}


def test_a_lane_that_needs_no_rows_keeps_its_cursor_as_it_is() -> None:
    """An older version saved no size, and a lane that does not move does not learn it."""
    run = TinyRun([8, 8])
    found = walker_of(run).advance(cursors((0, 3, 0), (0, 3, 0)), count(0, 1))
    assert found.cursors.tolist() == [[0, 3, 0], [1, 0, 0]]


def test_min_tokens_does_not_drop_the_rest_of_a_document_that_was_begun() -> None:
    run = TinyRun([3, 6], num_lanes=1, min_tokens=5)
    found = walker_of(run).advance(cursors((0, 1, 3)), count(1))
    assert found.cursors.tolist() == [[1, 3, 6]]
    assert named(found.counts[0]) == {"tokens": 5, "documents": 1}


def test_max_tokens_does_not_drop_the_rest_of_a_document_that_was_begun() -> None:
    run = TinyRun([9, 6, 8], num_lanes=1, max_tokens=6)
    found = walker_of(run).advance(cursors((0, 7, 9)), count(1))
    assert found.cursors.tolist() == [[1, 3, 6]]
    found = walker_of(run).advance(cursors((0, 7, 9)), count(2))
    assert found.cursors.tolist() == [[4, 2, 6]]
    assert named(found.counts[0]) == {"tokens": 10, "documents": 2, "filtered": 2}


def test_all_padding_counts_in_the_first_stream() -> None:
    run = TinyRun([2], [3], num_lanes=1, packing="one_per_row")
    found = walker_of(run).advance(cursors((0, 0, 0)), count(2))
    assert named(found.counts[0]) == {"tokens": 2, "documents": 1, "padding": 5}
    assert named(found.counts[1]) == {"tokens": 3, "documents": 1}


def test_a_document_in_many_rows_counts_once_it_is_read_to_its_end() -> None:
    run = TinyRun([12, 1], num_lanes=1, packing="one_per_row", overflow="rows")
    walker = walker_of(run)
    half = walker.advance(cursors((0, 0, 0)), count(2))
    assert half.cursors.tolist() == [[0, 10, 12]]
    assert named(half.counts[0]) == {"tokens": 10}
    rest = walker.advance(half.cursors, count(1))
    assert rest.cursors.tolist() == [[1, 0, 0]]
    assert named(rest.counts[0]) == {"tokens": 2, "documents": 1, "padding": 3}


def test_a_far_row_is_found_by_tables_with_exact_statistics() -> None:
    """Each 2 documents of lane 0 have 5 tokens, and each 2 of lane 1 have 9."""
    run = TinyRun([3, 4, 2, 5] * 2_048)
    walker, start = walker_of(run), cursors((0, 0, 0), (0, 0, 0))
    walker.locate(start, count(0), count(0))  # with a table in memory, few documents are scanned
    found = walker.advance(start, count(36_000, 36_000))
    # lane 0: 180,000 = 36,000 · 5; lane 1: 180,000 = 20,000 · 9
    assert found.cursors.tolist() == [[72_000, 0, 0], [40_000, 0, 0]]
    assert named(found.counts[0]) == {"tokens": 360_000, "documents": 112_000}
    inside = walker.advance(start, count(36_001, 36_001))
    assert inside.cursors.tolist() == [[72_002, 0, 0], [40_001, 1, 5]]
    assert named(inside.counts[0]) == {"tokens": 360_010, "documents": 112_003}


def test_a_finite_lane_is_dry_one_row_after_its_last() -> None:
    run = TinyRun([3, 4, 2, 5], epochs=2)
    walker, start = walker_of(run), cursors((0, 0, 0), (0, 0, 0))
    full = walker.advance(start, count(2, 3))
    assert not full.is_dry.any()
    assert full.cursors.tolist() == [[4, 0, 0], [3, 2, 5]]
    assert walker.advance(start, count(3, 3)).is_dry.tolist() == [True, False]


def test_an_endless_lane_without_tokens_is_dry() -> None:
    run = TinyRun([0, 4, 0, 5])
    found = walker_of(run).advance(cursors((0, 0, 0), (0, 0, 0)), count(1, 1))
    assert found.is_dry.tolist() == [True, False]


@pytest.mark.parametrize(
    ("cursor", "message"),
    [
        ((0, 4, 9), "at token 4 of document 0, which had 9 tokens .*, it has 8"),
        ((0, 9, 0), "at token 9 of document 0, which had 0 tokens .*unknown.*, it has 8"),
        ((2, 1, 7), "at token 1 of document 2, which had 7 tokens"),
    ],
)
def test_a_cursor_in_a_document_of_another_length_is_refused(
    cursor: tuple[int, int, int], message: str
) -> None:
    run = TinyRun([8, 4, 6, 2], num_lanes=1)
    with pytest.raises(StreamChangedError, match=message):
        walker_of(run).advance(cursors(cursor), count(1))


def test_a_cursor_at_the_end_of_its_document_is_not_beyond_it() -> None:
    found = walker_of(TinyRun([4, 6], num_lanes=1)).advance(cursors((0, 4, 4)), count(1))
    assert found.cursors.tolist() == [[1, 5, 6]]


@pytest.mark.parametrize(
    ("packing", "overflow", "start", "units"),
    [
        ("concat", "cut", (0, 0, 0), 26),
        ("concat", "cut", (0, 5, 12), 21),
        ("concat", "cut", (1, 0, 0), 14),
        ("concat", "cut", (3, 1, 12), 12),
        ("concat", "cut", (6, 0, 0), 0),
        ("one_per_row", "rows", (0, 0, 0), 8),
        ("one_per_row", "rows", (0, 5, 12), 7),
        ("one_per_row", "cut", (0, 0, 0), 4),
    ],
)
def test_the_units_from_a_cursor_to_the_end_of_a_finite_lane(
    packing: str, overflow: str, start: tuple[int, int, int], units: int
) -> None:
    run = TinyRun([12, 0, 1], num_lanes=1, epochs=2, packing=packing, overflow=overflow)
    assert walker_of(run).count_units(cursors(start)).tolist() == [units]


@given(lengths=LENGTHS, rows=st.integers(0, 6), further=st.integers(0, 40))
def test_the_units_before_a_later_document_are_those_in_between(
    lengths: list[int], rows: int, further: int
) -> None:
    run = TinyRun(lengths)
    walker = walker_of(run)
    at = walker.advance(cursors((0, 0, 0), (0, 0, 0)), count(rows, 0)).cursors
    ordinals = at[:, 0] + 1 + further
    found = walker.count_units_before(at, count(0, 1), ordinals)
    for lane in (0, 1):
        expected = sum(run.naive.documents(lane, int(ordinals[lane]))) - 5 * rows * (not lane)
        assert found[lane] == expected


def test_the_units_before_several_documents_of_a_lane() -> None:
    walker = walker_of(TinyRun([8, 4, 6, 2], num_lanes=1))
    found = walker.count_units_before(cursors((0, 3, 8)), count(0, 0, 0), count(1, 2, 40))
    assert found.tolist() == [5, 9, 10 * 20 - 3]


def test_units_are_located_without_moving_the_other_lanes() -> None:
    run = TinyRun([8, 4, 6, 2])
    starts = cursors((0, 3, 8), (0, 0, 0))
    found, is_dry = walker_of(run).locate(starts, count(0, 0, 0, 1, 0), count(0, 4, 5, 5, 12))
    assert found[:, :2].tolist() == [[0, 3], [0, 7], [1, 0], [1, 1], [2, 1]]
    assert starts.tolist() == [[0, 3, 8], [0, 0, 0]]
    assert not is_dry.any()


def test_units_beyond_a_finite_lane_are_dry() -> None:
    walker = walker_of(TinyRun([8, 4, 6, 2], epochs=1))
    found, is_dry = walker.locate(cursors((0, 3, 8), (0, 0, 0)), count(0, 0, 1), count(11, 12, 6))
    assert is_dry.tolist() == [False, True, False]
    assert found[[0, 2], :2].tolist() == [[2, 0], [2, 0]]


def test_the_rest_of_a_lane_lists_sizes_and_why_others_are_missing() -> None:
    lengths = [8, 4, Size.FILTERED, 2, Size.FAILED]
    walker = walker_of(TinyRun(lengths, epochs=1))
    rest = walker.measure_rest(cursors((0, 3, 8), (1, 0, 0)))
    assert [each.tolist() for each in rest] == [[8, Size.FILTERED, Size.FAILED], [2, Size.ABSENT]]


def test_the_rest_of_a_lane_begins_with_a_begun_document_that_min_tokens_would_drop() -> None:
    walker = walker_of(TinyRun([3, 4], num_lanes=1, epochs=1, min_tokens=9))
    [rest] = walker.measure_rest(cursors((0, 1, 3)))
    assert rest.tolist() == [3, Size.FILTERED]


def test_a_lane_at_its_end_has_no_rest() -> None:
    walker = walker_of(TinyRun([3, 4, 5], epochs=1))
    rest = walker.measure_rest(cursors((2, 0, 0), (0, 0, 0)))
    assert [each.tolist() for each in rest] == [[], [4, Size.ABSENT]]


def test_documents_count_to_their_end_however_far_they_are() -> None:
    run = TinyRun([3, 4, Size.FILTERED, 5] * 2_048)
    walker = walker_of(run)
    near = walker.count_documents(count(0, 1), count(0, 1), count(3, 2))
    assert named(near[0]) == {"tokens": 11, "documents": 3, "filtered": 1}
    walker.locate(cursors((0, 0, 0), (0, 0, 0)), count(0), count(1))  # builds the first table
    far = walker.count_documents(count(0, 1), count(0, 1), count(60_000, 40_001))
    assert named(far[0]) == {
        "tokens": 3 * 30_000 + 9 * 20_000,
        "documents": 30_000 + 40_000,
        "filtered": 30_000,
    }
