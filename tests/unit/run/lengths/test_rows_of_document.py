"""The rows of a document are the rows in which a walk over all rows meets it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.run.lengths.row_finder import RowFinder
from cloudload.run.lengths.rows_of_document import FoundSpan, find_spans
from cloudload.run.position import Position
from testkit.examples import EXAMPLES, PACKINGS
from testkit.tiny_runs import TinyRun, name_documents

LENGTHS = st.lists(st.integers(0, 12), min_size=2, max_size=8).filter(
    lambda lengths: any(lengths[::2]) and any(lengths[1::2])
)


def spans_of(
    run: TinyRun, sample: int, stop: int, *, component: int = 0, position: Position | None = None
) -> list[FoundSpan]:
    return find_spans(run.lengths, position or run.start, component, sample, stop)


def walk(
    run: TinyRun, start: Position, stop: int, component: int = 0
) -> dict[int, list[tuple[int, int, int, int]]]:
    """(row, epoch, start, stop) of each span, by sample, found by looking at every row."""
    sizes, num_lanes = run.lengths.sizes[component], run.recipe.num_lanes
    found = defaultdict(list)
    lengths = run.lengths.settle(start)
    pieces = name_documents(RowFinder(lengths, start).find(np.arange(start.rows, stop)))
    pieces = pieces[pieces[:, 1] // num_lanes == component]
    rows, lanes, ordinals, firsts, afters = pieces.T
    epochs, _ = sizes.component.lanes.epoch_positions(lanes % num_lanes, ordinals)
    samples = sizes.measure(lanes % num_lanes, ordinals).samples - sizes.component.first_sample
    columns = (samples, start.rows + rows, epochs, firsts, afters)
    for sample, *span in zip(*(column.tolist() for column in columns), strict=True):
        found[sample].append((span[0], span[1], span[2], span[3]))
    return found


@given(
    lengths=LENGTHS,
    options=st.sampled_from(PACKINGS),
    epochs=st.sampled_from([None, 1, 3]),
    shuffle=st.booleans(),
    rows=st.tuples(st.integers(0, 6), st.integers(0, 12)),
)
@settings(max_examples=2 * EXAMPLES)
def test_every_sample_is_found_where_a_walk_over_all_rows_finds_it(
    lengths: list[int],
    options: dict[str, Any],
    epochs: int | None,
    shuffle: bool,
    rows: tuple[int, int],
) -> None:
    run = TinyRun(lengths, epochs=epochs, shuffle=shuffle, **options)
    position, stop = run.lengths.advance(run.start, rows[0]), sum(rows)
    if position is None or position.is_in_tail:
        return
    try:
        expected = walk(run, position, stop)
    except DatasetError:  # a lane may miss all tokens of a shuffled run for long
        return
    for sample in range(len(lengths)):
        found = spans_of(run, sample, stop, position=position)
        spans = [(row, epoch, start, after) for row, _, epoch, start, after in found]
        assert spans == expected[sample]


def test_a_document_is_found_in_each_epoch_with_the_tokens_of_each_row() -> None:
    """Lane 1 reads 4 and 5 tokens per epoch: aaaab bbbba aaabb …"""
    run = TinyRun([3, 4, 2, 5])
    assert spans_of(run, 1, 7) == [
        FoundSpan(row=1, piece=0, epoch=0, start=0, stop=4),
        FoundSpan(row=3, piece=4, epoch=1, start=0, stop=1),
        FoundSpan(row=5, piece=0, epoch=1, start=1, stop=4),
    ]


def test_the_row_at_which_to_stop_is_left_out() -> None:
    run = TinyRun([3, 4, 2, 5])
    assert [span.row for span in spans_of(run, 1, 5)] == [1, 3]
    assert [span.row for span in spans_of(run, 1, 6)] == [1, 3, 5]
    assert spans_of(run, 1, 1) == []


def test_from_within_a_document_only_its_rest_is_found() -> None:
    run = TinyRun([12, 5], num_lanes=1)
    position = run.lengths.advance(run.start, 1)
    assert position is not None
    spans = spans_of(run, 0, 3, position=position)
    assert [tuple(span) for span in spans] == [(1, 0, 0, 5, 10), (2, 0, 0, 10, 12)]


def test_from_after_a_document_its_next_epoch_is_found() -> None:
    run = TinyRun([5, 5], num_lanes=1)
    position = run.lengths.advance(run.start, 1)
    assert position is not None
    assert [tuple(span) for span in spans_of(run, 0, 4, position=position)] == [(2, 0, 1, 0, 5)]


def test_the_tail_has_the_tokens_that_lanes_left() -> None:
    """Lane 0 has 12 tokens and lane 1 has 6: row 3 begins the tail with the last 2 and 1."""
    run = TinyRun([12, 6], epochs=1)
    assert [tuple(span) for span in spans_of(run, 0, 9)] == [
        (0, 0, 0, 0, 5),
        (2, 0, 0, 5, 10),
        (3, 0, 0, 10, 12),
    ]
    assert [tuple(span) for span in spans_of(run, 1, 9)] == [(1, 0, 0, 0, 5), (3, 1, 0, 5, 6)]
    assert [span.row for span in spans_of(run, 0, 3)] == [0, 2]


def test_a_document_without_tokens_has_no_rows() -> None:
    assert spans_of(TinyRun([3, 0, 2, 5], num_lanes=1), 1, 20) == []


def test_with_fewer_documents_than_lanes_any_lane_may_read_a_document() -> None:
    run = TinyRun([5, 5, 5], num_lanes=4)
    expected = [(row, row // 3, 0, 5) for row in range(0, 24, 3)]
    assert [(span.row, span.epoch, span.start, span.stop) for span in spans_of(run, 0, 24)] == (
        expected
    )


def test_with_canonical_nodes_a_document_is_looked_for_in_the_lane_that_reads_its_node() -> None:
    """With 6 nodes, lanes 0 to 5 read nodes 0 3 1 4 2 5, which is not its own inverse."""
    run = TinyRun([5, 7, 3, 6, 2, 9] * 2, num_lanes=6, num_canonical_nodes=6)
    assert run.recipe.components[0].lanes.first_positions.tolist() == [0, 3, 1, 4, 2, 5]
    expected = walk(run, run.start, 30)
    for sample in range(12):
        found = spans_of(run, sample, 30)
        assert [(row, epoch, start, stop) for row, _, epoch, start, stop in found] == (
            expected[sample]
        )


def test_waiting_tokens_of_a_lane_are_found_in_the_row_that_emits_them() -> None:
    """Document 0 waits in an open row when document 1 fills row 0."""
    run = TinyRun([2, 5, 3], num_lanes=1, packing="best_fit")
    position = run.lengths.advance(run.start, 1)
    assert position is not None
    assert run.naive.rows(2) == [[(0, 1, 0, 5)], [(0, 0, 0, 2), (0, 2, 0, 3)]]
    assert [tuple(span) for span in spans_of(run, 0, 2, position=position)] == [(1, 0, 0, 0, 2)]


def test_an_endless_lane_without_tokens_is_refused() -> None:
    with pytest.raises(DatasetError, match="the rows before row 4 are unknown"):
        spans_of(TinyRun([5, 0]), 0, 4)


@given(
    first=LENGTHS,
    second=LENGTHS,
    options=st.sampled_from(PACKINGS),
    at=st.integers(0, 4),
    max_epochs=st.sampled_from([[1, 1], [1, 2], [None, 1]]),
)
@settings(max_examples=2 * EXAMPLES)
def test_in_a_mixture_whose_streams_end_samples_are_found_in_lanes_and_tails(
    first: list[int],
    second: list[int],
    options: dict[str, Any],
    at: int,
    max_epochs: list[int | None],
) -> None:
    run = TinyRun(first, second, proportions=[1, 1], max_epochs=max_epochs, **options)
    position = run.lengths.advance(run.start, at)
    if position is None:
        return
    for component, lengths in enumerate((first, second)):
        expected = walk(run, position, at + 9, component)
        for sample in range(len(lengths)):
            found = spans_of(run, sample, at + 9, component=component, position=position)
            spans = [(row, epoch, start, stop) for row, _, epoch, start, stop in found]
            assert spans == expected[sample]
