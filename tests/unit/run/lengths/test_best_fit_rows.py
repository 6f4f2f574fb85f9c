"""The pieces of any rows of `best_fit` lanes, and the rows of any of their documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.rows.packing.residue import encode_residue, encode_spans
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.row_finder import BestFitRows, RowOfDocument, decode_spans
from testkit.tiny_runs import TinyRun, name_documents

LENGTHS = st.lists(st.integers(0, 12), min_size=4, max_size=20).filter(
    lambda lengths: any(lengths[::2]) and any(lengths[1::2]) and len(lengths) % 2 == 0
)


def open_run(lengths: list[int], **options: Any) -> tuple[TinyRun, BestFitRows]:
    run = TinyRun(lengths, packing="best_fit", open_rows=3, **options)
    [walker] = run.lengths.walkers
    assert isinstance(walker, BestFitWalker)
    assert run.start.residues is not None
    return run, BestFitRows(walker, run.start.cursors[0], run.start.residues[0])


@given(
    lengths=LENGTHS,
    turns=st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), max_size=8),
        min_size=1,
        max_size=3,
    ),
)
def test_rows_are_those_of_the_packer_in_any_order(
    lengths: list[int], turns: list[list[tuple[int, int]]]
) -> None:
    run, rows = open_run(lengths)
    expected = [run.naive.lane_rows(lane, 21) for lane in (0, 1)]
    for asked in turns:
        lanes, numbers = np.array(asked, np.int64).reshape(-1, 2).T
        assert name_documents(rows.find(lanes, numbers)).tolist() == [
            [row, lane, *piece[:3]]
            for row, (lane, index) in enumerate(asked)
            for piece in expected[lane][index].pieces
        ]


@given(lengths=LENGTHS, lane=st.integers(0, 1), ordinal=st.integers(0, 12))
def test_a_document_is_found_in_each_of_its_rows(
    lengths: list[int], lane: int, ordinal: int
) -> None:
    run, rows = open_run(lengths)
    size = run.naive.documents(lane, ordinal + 1)[-1]
    packed = run.naive.lane_rows(lane, 60)
    expected = [
        (row, place, start, stop)
        for row, each in enumerate(packed)
        for place, (document, start, stop, _) in enumerate(each.pieces)
        if document == ordinal
    ]
    assert [tuple(each) for each in rows.find_document(lane, ordinal, size, 60)] == expected


def test_a_search_stops_at_the_most_rows() -> None:
    _, rows = open_run([12, 3], num_lanes=1)
    found = list(rows.find_document(0, 0, 12, 99))
    assert found == [
        RowOfDocument(row=0, piece=0, start=0, stop=5),
        RowOfDocument(row=1, piece=0, start=5, stop=10),
        RowOfDocument(row=2, piece=0, start=10, stop=12),
    ]
    assert list(rows.find_document(0, 0, 12, 2)) == found[:2]
    assert list(rows.find_document(0, 0, 0, 99)) == []


def test_rows_are_counted_from_the_state_with_its_residue() -> None:
    run, _ = open_run([2, 5, 3], num_lanes=1)
    [walker] = run.lengths.walkers
    assert isinstance(walker, BestFitWalker)
    residue = encode_residue(()) + encode_residue([(0, 0, 2)])
    rows = BestFitRows(walker, np.array([[2, 0, 0]]), np.array([residue], object))
    found = rows.find(np.array([0]), np.array([0]))
    assert name_documents(found).tolist() == [[0, 0, 0, 0, 2], [0, 0, 2, 0, 3]]


def test_a_finite_lane_has_no_row_after_its_last() -> None:
    run, rows = open_run([5, 5, 5], num_lanes=1, epochs=1)
    found = rows.find(np.array([0]), np.array([2]))
    assert name_documents(found).tolist() == [[0, 0, 2, 0, 5]]
    with pytest.raises(DatasetError, match="lane 0 has no tokens"):
        rows.find(np.array([0, 0]), np.array([2, 3]))
    assert len(run.naive.lane_rows(0, 9)) == 3


def test_a_document_after_the_end_of_a_finite_lane_is_in_no_row() -> None:
    _, rows = open_run([5, 5, 5], num_lanes=1, epochs=1)
    assert list(rows.find_document(0, 7, 5, 99)) == []


def test_no_rows_have_no_pieces() -> None:
    _, rows = open_run([5, 5])
    assert rows.find(np.empty(0, np.int64), np.empty(0, np.int64)).shape == (0, 4)


def test_spans_are_decoded_as_they_were_encoded() -> None:
    spans = np.array([[0, 0, 5], [7, 3, 1 << 30]])
    assert decode_spans(b"".join(encode_spans(spans))).tolist() == spans.tolist()
    assert decode_spans(b"").shape == (0, 3)
