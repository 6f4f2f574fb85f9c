"""A finite run ends, and every position of a run is, where packing all documents puts it."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.rows.packing.tables import Size
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Origin, Position
from cloudload.stats import COUNTS
from cloudload.system.arrays import NEVER
from testkit.examples import PACKINGS
from testkit.tiny_runs import TinyRun, tiny_lengths

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)


def reopen(lengths: RunLengths) -> RunLengths:
    """The lengths of the same run, as another process opens them."""
    opened: RunLengths = pickle.loads(pickle.dumps(lengths))
    return opened


def named(position: Position | None, stream: int = 0) -> dict[str, int]:
    """The statistics of a stream that are not 0, by name."""
    assert position is not None
    counts = zip(COUNTS, position.counts[stream].tolist(), strict=True)
    return {name: value for name, value in counts if value}


def same(one: Position | None, other: Position | None) -> bool:
    """Whether two positions and the arrays of their lanes are equal."""
    assert one is not None
    assert other is not None
    plain = [replace(each, lanes=None, batches=0) for each in (one, other)]  # type: ignore[arg-type]
    arrays = [each.lanes.arrays for each in (one, other)]
    parts = [
        (each.cursors.tolist(), each.counts.tolist(), each.tails, np.array(each.residues).tolist())
        for each in arrays
    ]
    return plain[0] == plain[1] and parts[0] == parts[1]


@given(lengths=LENGTHS, options=st.sampled_from(PACKINGS), epochs=st.integers(1, 3))
def test_a_finite_run_has_the_rows_of_its_lanes_and_its_tail(
    lengths: list[int], options: dict[str, Any], epochs: int
) -> None:
    run = TinyRun(lengths, epochs=epochs, **options)
    rows = run.naive.all_rows()
    ending = run.lengths.find_tails(run.start).ending
    assert ending.end == len(rows)
    assert run.lengths.count_rows(run.start) == len(rows)
    [first] = ending.lane_ends
    assert all(run.naive.rows(first))
    assert not run.naive.rows(first + 1)[-1]


@given(
    lengths=LENGTHS, options=st.sampled_from(PACKINGS), epochs=st.integers(1, 3),
    at=st.floats(0, 1),
    then=st.floats(0, 1),
)  # fmt: skip
def test_a_position_counts_the_rows_before_it_wherever_it_was_reached_from(
    lengths: list[int], options: dict[str, Any], epochs: int, at: float, then: float
) -> None:
    run = TinyRun(lengths, epochs=epochs, **options)
    rows = run.naive.all_rows()
    row = round(at * len(rows))
    found = run.lengths.advance(run.start, row)
    tokens = sum(stop - start for *_, start, stop in itertools.chain.from_iterable(rows[:row]))
    assert named(found).get("tokens", 0) == tokens
    assert named(found).get("padding", 0) == 5 * row - tokens
    later = row + round(then * (len(rows) - row))
    assert found is not None
    assert same(reopen(run.lengths).advance(found, later), run.lengths.advance(run.start, later))


@given(lengths=LENGTHS, options=st.sampled_from(PACKINGS), epochs=st.integers(1, 3))
def test_at_its_end_a_run_has_counted_every_document_once(
    lengths: list[int], options: dict[str, Any], epochs: int
) -> None:
    run = TinyRun([Size.FILTERED, *lengths], epochs=epochs, **options)
    tails = run.lengths.find_tails(run.start)
    found = run.lengths.advance(run.start, tails.ending.end)
    assert found is not None
    counts = named(found.with_lanes(counts=found.counts + tails.count_rest(found)))
    assert counts["tokens"] + counts.get("truncated", 0) == epochs * sum(lengths)
    assert counts["documents"] == epochs * sum(length > 0 for length in lengths)
    assert counts.get("empty", 0) == epochs * lengths.count(0)
    assert counts["filtered"] == epochs


def test_the_tail_begins_at_the_first_row_that_a_lane_cannot_fill() -> None:
    """Lane 0 has 12 tokens and lane 1 has 5. Row 3 is lane 1's second."""
    run = TinyRun([12, 5], epochs=1)
    tails = run.lengths.find_tails(run.start)
    assert (tails.ending.lane_ends, tails.ending.end) == ((3,), 4)
    assert tails.ended(0).cursors.tolist() == [[[0, 10, 12], [1, 0, 0]]]
    assert tails.tail(0).pieces.tolist() == [[0, 0, 10, 12]]


def test_in_the_tail_lanes_stay_where_they_ended_and_stages_count_the_rows() -> None:
    run = TinyRun([22, 5], epochs=1)
    found = run.lengths.advance(run.start, 5)
    assert found is not None
    assert (found.rows, found.lanes_row, found.stages_of(0)) == (5, 3, ((5, 2),))
    assert found.cursors.tolist() == [[[0, 10, 22], [1, 0, 0]]]
    assert named(found) == {"tokens": 25, "documents": 1}


def test_the_row_after_the_end_is_unknown_unless_padding_follows() -> None:
    run = TinyRun([12, 5], epochs=1)
    assert run.lengths.advance(run.start, 5) is None
    padded = run.lengths.advance(run.start, 6, pads=True)
    assert named(padded) == {"tokens": 17, "documents": 2, "padding": 13}


def test_an_endless_run_with_a_lane_without_tokens_has_no_later_position() -> None:
    run = TinyRun([5, 0])
    assert run.lengths.advance(run.start, 1) is not None
    assert run.lengths.advance(run.start, 2) is None


def test_a_row_before_the_cursors_of_an_endless_run_is_unknown() -> None:
    run = TinyRun([5, 5])
    later = run.lengths.advance(run.start, 6)
    assert later is not None
    assert run.lengths.advance(later, 5) is None


def test_a_run_that_begins_within_the_data_ends_with_the_same_document() -> None:
    run = TinyRun([3, 4, 2, 5], epochs=2)
    later = Position.start(run.recipe, Origin(1, 1))
    assert later.cursors[0, :, 0].tolist() == [3, 2]
    assert run.lengths.count_rows(later) == 3  # 2 + 4 + 5 tokens


def test_a_finite_run_without_tokens_is_refused() -> None:
    run = TinyRun([0, 0], epochs=1)
    with pytest.raises(DatasetError, match="no document of a has any tokens"):
        run.lengths.find_tails(run.start)


@pytest.mark.parametrize(
    ("options", "units", "size", "expected"),
    [
        ({}, 4, 7, [(0, 0, 1), (1, 1, 6), (2, 6, 7)]),
        ({}, 5, 5, [(1, 0, 5)]),
        ({}, 0, 0, []),
        ({"packing": "one_per_row"}, 4, 7, [(4, 0, 5)]),
        ({"packing": "one_per_row", "overflow": "rows"}, 4, 7, [(4, 0, 5), (5, 5, 7)]),
    ],
)
def test_a_document_is_cut_where_its_lanes_rows_end(
    options: dict[str, Any], units: int, size: int, expected: list[tuple[int, int, int]]
) -> None:
    assert list(TinyRun([1], **options).lengths.cut_spans(units, size)) == expected


def test_the_rows_of_more_epochs_are_counted_with_the_options_of_an_endless_run() -> None:
    run = TinyRun([3, 4, 2, 5])
    assert run.lengths.count_rows_of_epochs(1) == 3  # 14 tokens
    assert run.lengths.count_rows_of_epochs(5) == 14  # 70 tokens
    rows = TinyRun([3, 4, 2, 12], packing="one_per_row", overflow="rows")
    assert rows.lengths.count_rows_of_epochs(5) == 30


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 1 << 24), ({"packing": "one_per_row"}, 1 << 24), ({"packing": "best_fit"}, 1 << 20)],
)
def test_an_end_is_foreseen_if_few_documents_are_left(options: dict[str, Any], most: int) -> None:
    def can_foresee(epochs: int, epoch: int = 0) -> bool:
        run = TinyRun([1] * 4, epochs=epochs, **options)
        position = Position.start(run.recipe, Origin(epoch, 0))
        return run.lengths.can_foresee(position, is_needed=False)

    assert can_foresee(most // 4)
    assert not can_foresee(most // 4 + 1)
    assert can_foresee(most // 4 + 1, epoch=1)


def test_an_end_that_is_needed_and_one_in_the_tail_is_always_foreseen() -> None:
    run = TinyRun([1] * 4, epochs=1 << 30)
    assert run.lengths.can_foresee(run.start, is_needed=True)
    assert run.lengths.can_foresee(run.start.with_lanes(tails=(((5, 0),),)), is_needed=False)


def test_a_run_that_resumes_in_its_tail_with_longer_rows_begins_a_stage() -> None:
    """2 + 12 tokens are left when 1 row of the tail was delivered, so 2 rows of 8 follow."""
    lengths = [22, 5]
    run, longer = TinyRun(lengths, epochs=1), TinyRun(lengths, epochs=1, seq_len=8)
    before = run.lengths.advance(run.start, 4)
    assert before is not None
    found = tiny_lengths(longer.recipe, lengths).advance(before, 5)
    assert found is not None
    assert found.stages_of(0) == ((5, 1), (8, 1))
    assert named(found) == {"tokens": 27, "documents": 2, "padding": 1}


def test_the_ends_of_a_mixtures_streams_become_part_of_another_recipe() -> None:
    run = TinyRun([5] * 4, [5] * 2, proportions=[1, 1], epochs=1)
    tails = run.lengths.find_tails(run.start)
    assert tails.recipe.mixture.schedule[-1][1] == (1.0, 0.0)
    assert run.lengths.recipe.mixture.schedule == ((0, (1.0, 1.0)),)  # the question changes nothing
    assert run.lengths.ending is None
    ended = reopen(run.lengths).end(tails.ending)
    assert ended.recipe == run.lengths.settle(run.start).recipe == tails.recipe
    assert ended.find_tails(run.start).ending is ended.ending is tails.ending
    assert reopen(ended).recipe == tails.recipe


def test_a_mixture_counts_its_rows_unless_a_stream_is_endless() -> None:
    ending = TinyRun([5] * 4, [5] * 2, proportions=[1, 1], epochs=1)
    assert ending.lengths.count_rows(ending.start) == 6
    endless = TinyRun([5] * 4, [5] * 2, proportions=[1, 1], max_epochs=[None, 2])
    assert endless.lengths.count_rows(endless.start) is None
    assert endless.lengths.find_tails(endless.start).ending.end == NEVER


def test_an_endless_mixture_advances_each_component_by_its_rows() -> None:
    run = TinyRun([5] * 4, [3] * 2, proportions=[3, 1], num_lanes=1)
    found = run.lengths.advance(run.start, 40)
    assert found is not None
    rows = np.bincount(run.recipe.components_of(np.arange(40))).tolist()
    assert [named(found, stream)["tokens"] for stream in (0, 1)] == [5 * rows[0], 5 * rows[1]]
    documents, into = divmod(5 * rows[1], 3)
    assert found.cursors[:, 0].tolist() == [[rows[0], 0, 0], [documents, into, 3 if into else 0]]
