"""The end of a finite run: its first dry row, its tails, and the statistics of their rows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudload.rows.packing.tables import Size
from cloudload.rows.packing.tail import Tail
from cloudload.run.lengths.ending import TailCounts, Tails, arrays_of_stream
from cloudload.run.lengths.mixture_search import first_dry_row
from cloudload.run.position import Position
from cloudload.stats import COUNTS
from cloudload.system.arrays import Ints
from testkit.examples import EXAMPLES, PACKINGS
from testkit.tiny_runs import TinyRun, tiny_lengths, tiny_recipe


def test_the_first_dry_row_of_the_docstring() -> None:
    assert first_dry_row(np.array([3, 1]), 5) == 7


def test_a_lane_without_a_row_is_dry_at_its_first_row() -> None:
    assert first_dry_row(np.array([2, 2, 0, 2]), 0) == 2
    assert first_dry_row(np.array([2, 2, 0, 2]), 3) == 6


@given(num_rows=st.lists(st.integers(0, 5), min_size=1, max_size=6), row=st.integers(0, 20))
def test_the_first_dry_row_is_where_a_run_row_by_row_stops(num_rows: list[int], row: int) -> None:
    left, reached = list(num_rows), row
    while left[reached % len(left)]:
        left[reached % len(left)] -= 1
        reached += 1
    assert first_dry_row(np.array(num_rows), row) == reached


# remnants of 3, 7, a filtered and a failed document, one counted before, and an empty one
REMNANTS = np.array(
    [
        [0, 4, 1, 4, 4],  # the first token was in an earlier row
        [1, 4, 0, 7, 7],
        [0, 5, 0, 0, Size.FILTERED],
        [1, 5, 0, 0, Size.FAILED],
        [0, 6, 0, 2, Size.ABSENT],
        [1, 6, 0, 0, 0],
    ]
)
# rows 20, 21 and 22 of 5 tokens: 3 + 2, then 5, then 2 and 3 of padding
TAIL = Tail(
    first_row=20,
    remnants=REMNANTS,
    pieces=np.array([[0, 0, 1, 4], [0, 1, 0, 2], [1, 1, 2, 7], [2, 4, 0, 2]]),
    passed=np.array([0, 1, 2, 6]),
)


def tail_counts(*, padding_stream: int = 0, packing: str = "concat") -> TailCounts:
    recipe = tiny_recipe([4], [4], packing=packing)
    return TailCounts(recipe, TAIL, np.array([0, 1, 0, 1, 0, 1]), padding_stream)


def named(counts: Ints) -> list[dict[str, int]]:
    """For each stream, the statistics that are not 0, by name."""
    return [
        {name: value for name, value in zip(COUNTS, row, strict=True) if value}
        for row in counts.tolist()
    ]


def test_before_its_first_row_a_tail_counts_nothing() -> None:
    assert named(tail_counts().before(20)) == [{}, {}]
    assert named(tail_counts().before(3)) == [{}, {}]


def test_a_row_counts_its_tokens_by_stream_and_the_documents_that_it_passes() -> None:
    assert named(tail_counts().before(21)) == [{"tokens": 3, "documents": 1}, {"tokens": 2}]
    assert named(tail_counts().before(22)) == [
        {"tokens": 3, "documents": 1},
        {"tokens": 7, "documents": 1},
    ]


def test_the_last_row_counts_its_padding_and_every_document_except_those_counted_before() -> None:
    assert named(tail_counts().before(23)) == [
        {"tokens": 5, "documents": 1, "filtered": 1, "padding": 3},
        {"tokens": 7, "documents": 1, "failed": 1, "empty": 1},
    ]


def test_rows_after_the_end_are_padding() -> None:
    more = tail_counts().before(25) - tail_counts().before(23)
    assert named(more) == [{"padding": 10}, {}]


def test_the_padding_counts_in_the_stream_that_is_named() -> None:
    of_first, of_second = named(tail_counts(padding_stream=1).before(23))
    assert "padding" not in of_first
    assert of_second["padding"] == 3


def test_only_rows_that_cut_documents_truncate() -> None:
    of_first, of_second = named(tail_counts(packing="one_per_row").before(22))
    assert "truncated" not in of_first
    assert of_second["truncated"] == 2


def test_a_rest_without_tokens_counts_its_documents_and_no_padding() -> None:
    assert named(tail_counts().of_rest()) == [
        {"documents": 1, "filtered": 1},
        {"documents": 1, "failed": 1, "empty": 1},
    ]


# ---------------------------------------------------------------- the tails of a mixture's streams


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


def open_tails(run: TinyRun) -> Tails:
    return run.lengths.find_tails(run.start)


def rows_of(run: TinyRun, stream: int) -> list[int]:
    """The rows of a stream, up to the end of the run."""
    end = open_tails(run).ending.end
    streams = open_tails(run).recipe.components_of(np.arange(end)).tolist()
    return [row for row, each in enumerate(streams) if each == stream]


def lanes(position: Position | None) -> tuple[Any, ...]:
    assert position is not None
    arrays = position.lanes.arrays
    residues = None if arrays.residues is None else arrays.residues.tolist()
    return arrays.cursors.tolist(), residues, arrays.counts.tolist(), arrays.tails


def count(position: Position | None, stream: int) -> dict[str, int]:
    assert position is not None
    return dict(zip(COUNTS, position.counts[stream].tolist(), strict=True))


@given(first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS))
def test_the_rows_of_a_tail_are_numbered_as_the_mixture_deals_them(
    first: list[int], second: list[int], options: dict[str, Any]
) -> None:
    run = TinyRun(first, second, proportions=[1, 1], epochs=1, **options)
    tails = open_tails(run)
    for stream in (0, 1):
        in_tail = [row for row in rows_of(run, stream) if row >= tails.ending.lane_ends[stream]]
        assert tails.tail(stream).num_rows == len(in_tail)
        assert [tails.count_rows(stream, row) for row in in_tail] == list(range(len(in_tail)))
        assert [tails.row_of(stream, number) for number in range(len(in_tail))] == in_tail
        streams = np.full(len(in_tail), stream)
        numbers = tails.indices_of(streams, np.array(in_tail, np.int64))
        assert numbers.tolist() == list(range(len(in_tail)))
        assert tails.is_in_tail(streams, np.array(in_tail, np.int64)).all()
        others = np.array([row for row in rows_of(run, stream) if row not in in_tail], np.int64)
        assert not tails.is_in_tail(np.full(len(others), stream), others).any()


@given(first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS), at=st.floats(0, 1))
def test_within_a_tail_its_rows_keep_their_numbers(
    first: list[int], second: list[int], options: dict[str, Any], at: float
) -> None:
    run = TinyRun(first, second, proportions=[1, 1], epochs=1, **options)
    ending = open_tails(run).ending
    start = round(at * (ending.end - 1))
    position = run.lengths.advance(run.start, start)
    assert position is not None
    settled = run.lengths.recipe
    recipe = replace(run.recipe, mixture=settled.mixture.resume(settled.mixture, start))
    tails = tiny_lengths(recipe, first, second).find_tails(position)
    for stream in (0, 1):
        in_tail = [row for row in rows_of(run, stream) if row >= ending.lane_ends[stream]]
        later = [(number, row) for number, row in enumerate(in_tail) if row >= start]
        rows = np.array([row for _, row in later], np.int64)
        numbers = [number for number, _ in later]
        assert [tails.count_rows(stream, row) for _, row in later] == numbers
        assert [tails.row_of(stream, number) for number in numbers] == rows.tolist()
        assert tails.indices_of(np.full(len(rows), stream), rows).tolist() == numbers


def test_before_its_tail_a_stream_has_no_rows_of_it_and_after_the_run_all() -> None:
    run = TinyRun([9, 1], [5, 5], proportions=[1, 1], epochs=1)
    tails = open_tails(run)
    assert tails.count_rows(0, 0) == 0
    assert tails.count_rows(0, tails.ending.lane_ends[0]) == 0
    assert tails.count_rows(0, tails.ending.end) == tails.tail(0).num_rows


def test_rows_of_two_streams_are_numbered_together_in_any_order() -> None:
    run = TinyRun([9, 1, 9, 1], [7, 2, 8], proportions=[1, 1], epochs=1)
    tails, end = open_tails(run), open_tails(run).ending.end
    rows = np.arange(end)[::-1]
    streams = open_tails(run).recipe.components_of(rows)
    own = tails.is_in_tail(streams, rows)
    pairs = zip(streams[own].tolist(), rows[own].tolist(), strict=True)
    assert tails.indices_of(streams[own], rows[own]).tolist() == [
        tails.count_rows(stream, row) for stream, row in pairs
    ]
    assert {*streams[own].tolist()} == {0, 1}


def test_distant_rows_of_a_tail_are_numbered_without_listing_the_rows_between() -> None:
    """Lane 1 of stream a has a fifth of the tokens of lane 0, so most of its rows are a tail."""
    run = TinyRun([5, 1] * 2_048, [5], proportions=[1, 1], max_epochs=[50, 1])
    tails = open_tails(run)
    begin, end = tails.ending.lane_ends[0], tails.ending.end
    assert tails.ending.stream_ends[1] < begin < end - 70_000
    numbers = tails.indices_of(np.zeros(2, np.int64), np.array([end - 1, begin + 3]))
    assert numbers.tolist() == [end - 1 - begin, 3]


@given(first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS))
def test_at_its_tail_a_stream_has_in_its_lanes_what_the_tail_packs(
    first: list[int], second: list[int], options: dict[str, Any]
) -> None:
    run = TinyRun(first, second, proportions=[1, 1], epochs=1, **options)
    tails = open_tails(run)
    for stream, lengths in enumerate((first, second)):
        tail = tails.tail(stream)
        before = [row for row in rows_of(run, stream) if row < tails.ending.lane_ends[stream]]
        if options["packing"] != "one_per_row":
            packed = sum(lengths) - tail.num_tokens(0)
            assert packed <= 5 * len(before)
        flat = {*tail.remnants[:, 0].tolist()}
        assert flat <= {2 * stream, 2 * stream + 1}
        assert tails.ended(stream).counts.shape == (0, 0)


@given(
    first=LENGTHS,
    second=LENGTHS,
    options=st.sampled_from(PACKINGS),
    at=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    stopping=st.sampled_from(["all", "first"]),
)
@settings(max_examples=2 * EXAMPLES)
def test_a_position_is_the_same_from_wherever_it_is_computed(
    first: list[int],
    second: list[int],
    options: dict[str, Any],
    at: tuple[float, float],
    stopping: str,
) -> None:
    run = TinyRun(first, second, proportions=[2, 1], epochs=1, stopping=stopping, **options)
    end = open_tails(run).ending.end
    row, later = sorted(round(each * end) for each in at)
    position = run.lengths.advance(run.start, row)
    assert position is not None
    direct = run.lengths.advance(run.start, later)
    assert lanes(run.lengths.advance(position, later)) == lanes(direct)
    if row < end:  # another process finds the ends from the position, as a resumed run does
        settled = open_tails(run).recipe
        mixture = settled.mixture.resume(settled.mixture, row)
        resumed = tiny_lengths(replace(run.recipe, mixture=mixture), first, second)
        assert lanes(resumed.advance(position, later)) == lanes(direct)


@given(first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS))
def test_at_the_end_every_document_of_every_stream_was_counted_once(
    first: list[int], second: list[int], options: dict[str, Any]
) -> None:
    run = TinyRun(first, second, proportions=[1, 1], epochs=1, **options)
    end = open_tails(run).ending.end
    position = run.lengths.advance(run.start, end)
    total = 0
    for stream, lengths in enumerate((first, second)):
        counts = count(position, stream)
        total += counts["tokens"] + counts["padding"]
        assert counts["tokens"] + counts["truncated"] == sum(lengths)
        assert counts["documents"] == sum(length > 0 for length in lengths)
        assert counts["empty"] == lengths.count(0)
    assert total == 5 * end


@given(first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS), epochs=st.integers(1, 3))
@example(first=[1], second=[1, 0], options={"packing": "one_per_row"}, epochs=1)
def test_at_the_end_of_a_corpus_each_stream_has_its_documents(
    first: list[int], second: list[int], options: dict[str, Any], epochs: int
) -> None:
    run = TinyRun(first, second, epochs=epochs, **options)
    tails = open_tails(run)
    position = run.lengths.advance(run.start, tails.ending.end)
    assert position is not None
    # no row counts the documents without tokens that follow the last row
    totals = position.counts + tails.count_rest(position)
    for stream, lengths in enumerate((first, second)):
        counts = dict(zip(COUNTS, totals[stream].tolist(), strict=True))
        assert counts["tokens"] + counts["truncated"] == epochs * sum(lengths)
        assert counts["documents"] == epochs * sum(length > 0 for length in lengths)
        assert counts["empty"] == epochs * lengths.count(0)


def test_padding_after_the_end_counts_in_the_first_stream() -> None:
    run = TinyRun([5, 5], [5], proportions=[1, 1], epochs=1)
    padded = run.lengths.advance(run.start, 5, pads=True)
    assert count(padded, 0)["padding"] == 10
    assert count(padded, 1)["padding"] == 0
    assert run.lengths.advance(run.start, 4) is None


def test_at_the_row_of_the_position_nothing_moves_and_no_stage_begins() -> None:
    run = TinyRun([5, 5], [1], proportions=[1, 1], epochs=1)
    assert run.lengths.advance(run.start, 0) is run.start


def test_a_stage_counts_the_rows_of_the_tail_of_its_stream_only() -> None:
    run = TinyRun([5] * 8, [1, 1], proportions=[1, 1], epochs=1)
    row = open_tails(run).ending.lane_ends[1]
    before, after = (run.lengths.advance(run.start, each) for each in (row, row + 1))
    assert before is not None
    assert after is not None
    assert before.stages_of(1) == ()
    assert after.stages_of(0) == ()
    assert after.stages_of(1) == ((5, 1),)
    assert count(after, 1) | {"padding": 0} == count(before, 1) | {"tokens": 2, "documents": 2}
    assert count(after, 1)["padding"] == 3


def test_an_ending_travels_to_other_processes() -> None:
    run = TinyRun([9, 1], [5, 5], proportions=[1, 1], epochs=1)
    ending = open_tails(run).ending
    other = pickle.loads(pickle.dumps(ending))
    assert (other.end, other.stream_ends, other.lane_ends) == (
        ending.end,
        ending.stream_ends,
        ending.lane_ends,
    )
    assert other.stages_of(0) == ()


def test_lanes_of_a_stream_are_arrays_of_one_component() -> None:
    cursors, residues = np.zeros((2, 3), np.int64), np.array([b"", b"x"], object)
    arrays = arrays_of_stream(cursors, residues)
    assert arrays.cursors.shape == (1, 2, 3)
    assert arrays.residues is not None
    assert arrays.residues.tolist() == [[b"", b"x"]]
    assert arrays_of_stream(cursors, None).residues is None
