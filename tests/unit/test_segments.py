"""Segments, positions and labels of packed documents, compared with a token-by-token
computation."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloudload import segments
from cloudload.segments import (
    FIELDS,
    IGNORED_LABEL,
    SpanColumns,
    cu_seqlens,
    document_attention_mask,
    mask_document_edges,
    position_ids,
    row_bounds,
    segment_ids,
    seq_idx,
    spread,
)
from testkit.packed_batches import Packing, spans

TRACE: Packing = [[3, 1, 2], [5]], 8


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Any rows: full, padded, all padding, many spans of one token, or no rows."""
    batch = draw(st.lists(st.lists(st.integers(1, 4), max_size=5), max_size=5))
    return batch, max([1, *map(sum, batch)]) + draw(st.integers(0, 3))


def tokens_of(packing: Packing) -> list[list[tuple[int, int]]]:
    """The segment of each token (0: padding), and its position in the segment, computed one by
    one."""
    batch, seq_len = packing
    tokens = []
    for lengths in batch:
        row = [
            (number, position)
            for number, length in enumerate(lengths, 1)
            for position in range(length)
        ]
        tokens.append(row + [(0, position) for position in range(seq_len - len(row))])
    return tokens


def test_the_guide_draws_the_trace_of_the_docstring() -> None:
    drawing = inspect.cleandoc(str(segments.__doc__).split("\n\n")[1])
    guide = Path(__file__).parents[2] / "docs/guides/documents-apart.md"
    assert f"```text\n{drawing}\n```" in guide.read_text()
    assert all(f"\n{name} " in drawing for name in FIELDS)


def test_the_trace_of_the_docstring() -> None:
    rows, lengths, shape = spans(TRACE)
    assert segment_ids(rows, lengths, shape).tolist() == [
        [1, 1, 1, 2, 3, 3, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
    ]
    assert position_ids(rows, lengths, shape).tolist() == [
        [0, 1, 2, 0, 0, 1, 0, 1],
        [0, 1, 2, 3, 4, 0, 1, 2],
    ]
    assert spread(np.array([0, 0, 1, 1]), rows, lengths, shape).tolist() == [
        [0, 0, 0, 0, 1, 1, -1, -1],
        [1, 1, 1, 1, 1, -1, -1, -1],
    ]
    columns = SpanColumns(rows, lengths, np.array([0, 0, 1, 1]), np.array([7, 2, 4, 9]))
    assert FIELDS["document_ids"](columns, shape)["document_ids"].tolist() == [
        [7, 7, 7, 2, 4, 4, -1, -1],
        [9, 9, 9, 9, 9, -1, -1, -1],
    ]
    ends, longest = cu_seqlens(rows, lengths, shape)
    assert (ends.tolist(), longest) == ([0, 3, 4, 6, 8, 13, 16], 5)
    found = FIELDS["flash_attention"](columns, shape)
    assert found["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2, 3, 3], [4, 4, 4, 4, 4, 5, 5, 5]]
    assert found["cu_seq_lens_q"].tolist() == found["cu_seq_lens_k"].tolist() == ends.tolist()
    assert found["max_length_q"] == found["max_length_k"] == longest
    assert np.array_equal(found["position_ids"], position_ids(rows, lengths, shape))
    assert row_bounds(rows, lengths, shape).tolist() == [
        [0, 3, 4, 6, 8, 8, 8, 8, 8],
        [0, 5, 8, 8, 8, 8, 8, 8, 8],
    ]
    labels = np.full(shape, 7)
    mask_document_edges(labels, rows, lengths)
    assert labels.tolist() == [[-100, 7, 7, -100, -100, 7, 7, 7], [-100, 7, 7, 7, 7, 7, 7, 7]]


@pytest.mark.parametrize(
    ("batch", "ids", "ends", "longest"),
    [
        ([[], []], [[0, 0, 0], [0, 0, 0]], [0, 3, 6], 3),
        ([[3], [3]], [[1, 1, 1], [1, 1, 1]], [0, 3, 6], 3),
        ([[1, 1, 1], [], [1]], [[1, 2, 3], [0, 0, 0], [1, 0, 0]], [0, 1, 2, 3, 6, 7, 9], 3),
    ],
    ids=["all is padding", "each row is one span", "spans of one token"],
)
def test_rows_at_the_extremes(
    batch: list[list[int]], ids: list[list[int]], ends: list[int], longest: int
) -> None:
    arguments = spans((batch, 3))
    assert segment_ids(*arguments).tolist() == ids
    found = cu_seqlens(*arguments)
    assert (found[0].tolist(), found[1]) == (ends, longest)


@given(packings())
def test_every_token_knows_its_segment_and_its_place_in_it(packing: Packing) -> None:
    tokens = tokens_of(packing)
    ids, positions = segment_ids(*spans(packing)), position_ids(*spans(packing))
    assert ids.dtype == positions.dtype == np.int64
    assert ids.shape == positions.shape == (len(packing[0]), packing[1])
    assert ids.tolist() == [[number for number, _ in row] for row in tokens]
    assert positions.tolist() == [[position for _, position in row] for row in tokens]


@given(packings())
def test_the_segments_of_a_batch_follow_on_from_each_other(packing: Packing) -> None:
    flat = [position for row in tokens_of(packing) for _, position in row]
    expected = [place for place, position in enumerate(flat) if position == 0] + [len(flat)]
    ends, longest = cu_seqlens(*spans(packing))
    assert ends.dtype == np.int32
    assert ends.tolist() == (expected if flat else [0])
    assert longest == max(flat, default=-1) + 1


@given(packings())
def test_segments_are_numbered_through_the_batch_and_bounded_in_each_row(packing: Packing) -> None:
    starts = [[position == 0 for _, position in row] for row in tokens_of(packing)]
    numbers, bounds = seq_idx(*spans(packing)), row_bounds(*spans(packing))
    assert numbers.dtype == bounds.dtype == np.int32
    counted = np.cumsum([first for row in starts for first in row]) - 1
    assert numbers.flatten().tolist() == counted.tolist()
    seq_len = packing[1]
    for row, found in zip(starts, bounds.tolist(), strict=True):
        expected = [column for column, first in enumerate(row) if first]
        assert found == expected + [seq_len] * (seq_len + 1 - len(expected))


@given(packings())
def test_only_the_first_token_of_a_document_loses_its_label(packing: Packing) -> None:
    rows, lengths, shape = spans(packing)
    labels = np.arange(shape[0] * shape[1]).reshape(shape)
    expected = labels.tolist()
    for row, tokens in enumerate(tokens_of(packing)):
        for column, (number, position) in enumerate(tokens):
            if number and position == 0:
                expected[row][column] = IGNORED_LABEL
    mask_document_edges(labels, rows, lengths)
    assert labels.tolist() == expected


@given(packings())
def test_a_token_attends_to_its_own_segment_up_to_itself(packing: Packing) -> None:
    ids = segment_ids(*spans(packing))
    mask = document_attention_mask(torch.from_numpy(ids))
    assert mask.dtype == torch.bool
    assert mask.shape == (len(ids), 1, packing[1], packing[1])
    places = range(packing[1])
    expected = [
        [[[row[query] == row[key] and key <= query for key in places] for query in places]]
        for row in ids.tolist()
    ]
    assert mask.tolist() == expected
    assert mask.any(-1).all()


def test_spans_that_overflow_their_row_are_refused() -> None:
    rows, lengths, _ = spans(TRACE)
    for function in (segment_ids, position_ids, cu_seqlens, seq_idx, row_bounds):
        with pytest.raises(
            ValueError,
            match=r"the spans of row 0 have 6 tokens, but a row has only 5\. "
            r"Pass the spans and the shape of the same batch",
        ):
            function(rows, lengths, (2, 5))


@pytest.mark.parametrize("rows", [[0, 1, 2], [-1, 0, 1], [0, 0, 7]])
def test_spans_in_a_row_that_the_batch_does_not_have_are_refused(rows: list[int]) -> None:
    places, lengths = np.array(rows), np.array([2, 1, 3])
    message = rf"the spans are in rows {rows[0]} to {rows[2]}, but the batch has 2 rows\. Pass"
    for function in (segment_ids, position_ids, cu_seqlens, seq_idx, row_bounds):
        with pytest.raises(ValueError, match=message):
            function(places, lengths, (2, 8))
    with pytest.raises(ValueError, match=message):
        mask_document_edges(np.zeros((2, 8), np.int64), places, lengths)
