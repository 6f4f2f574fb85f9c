"""Pieces of ranges, and keys of documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.tables import cut_pieces, document_keys, select_pieces, split_keys

POINTS = st.integers(-3, 40)


def test_the_pieces_of_the_docstring() -> None:
    pieces = cut_pieces(np.array([0, 4]), np.array([4, 10]), 5)
    assert pieces.tolist() == [[0, 0, 0, 4], [0, 1, 4, 5], [1, 1, 5, 10]]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 40), POINTS), max_size=6), seq_len=st.integers(1, 9)
)
def test_each_point_of_a_range_is_in_the_piece_of_its_row(
    ranges: list[tuple[int, int]], seq_len: int
) -> None:
    begins, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    found = [
        (row, index, point)
        for row, index, start, stop in cut_pieces(begins, stops, seq_len).tolist()
        for point in range(start, stop)
    ]
    assert found == [
        (point // seq_len, index, point)
        for index, (begin, stop) in enumerate(ranges)
        for point in range(begin, stop)
    ]


def test_rows_are_taken_in_any_order_and_as_often_as_asked() -> None:
    pieces = np.array([[0, 7, 0, 2], [0, 8, 0, 3], [2, 9, 1, 4]])
    assert select_pieces(pieces, np.array([2, 1, 0, 2, 5])).tolist() == [
        [0, 9, 1, 4],
        [2, 7, 0, 2],
        [2, 8, 0, 3],
        [3, 9, 1, 4],
    ]
    assert pieces[:, 0].tolist() == [0, 0, 2]


def test_keys_sort_by_lane_and_then_by_ordinal() -> None:
    lanes, ordinals = np.array([0, 0, 1, 3839]), np.array([0, (1 << 40) - 1, 0, 7])
    keys = document_keys(lanes, ordinals)
    assert keys.tolist() == sorted(keys.tolist())
    assert [part.tolist() for part in split_keys(keys)] == [lanes.tolist(), ordinals.tolist()]
