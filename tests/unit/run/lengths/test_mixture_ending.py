"""The rows of the tails of a mixture's streams, and the lanes at any row of such a mixture."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.run.lengths.ending import Tails, arrays_of_stream
from cloudload.run.position import Position
from cloudload.stats import COUNTS
from testkit.examples import EXAMPLES
from testkit.tiny_runs import TinyRun, tiny_lengths

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)
PACKINGS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"packing": "concat"},
        {"packing": "one_per_row"},
        {"packing": "one_per_row", "overflow": "rows"},
        {"packing": "best_fit", "open_rows": 2},
    ]
)


def open_tails(run: TinyRun) -> Tails:
    return run.lengths.find_tails(run.start)


def rows_of(run: TinyRun, stream: int) -> list[int]:
    """The rows of a stream, up to the end of the run."""
    end = open_tails(run).ending.end
    streams = run.lengths.recipe.components_of(np.arange(end)).tolist()
    return [row for row, each in enumerate(streams) if each == stream]


def lanes(position: Position | None) -> tuple[Any, ...]:
    assert position is not None
    arrays = position.lanes.arrays
    residues = None if arrays.residues is None else arrays.residues.tolist()
    return arrays.cursors.tolist(), residues, arrays.counts.tolist(), arrays.tails


def count(position: Position | None, stream: int) -> dict[str, int]:
    assert position is not None
    return dict(zip(COUNTS, position.counts[stream].tolist(), strict=True))


@given(first=LENGTHS, second=LENGTHS, options=PACKINGS)
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
    streams = run.lengths.recipe.components_of(rows)
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


@given(first=LENGTHS, second=LENGTHS, options=PACKINGS)
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
    options=PACKINGS,
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
        settled = run.lengths.recipe
        mixture = settled.mixture.resume(settled.mixture, row)
        resumed = tiny_lengths(replace(run.recipe, mixture=mixture), first, second)
        assert lanes(resumed.advance(position, later)) == lanes(direct)


@given(first=LENGTHS, second=LENGTHS, options=PACKINGS)
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
