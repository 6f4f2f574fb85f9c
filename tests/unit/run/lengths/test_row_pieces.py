"""The pieces of any rows of lanes, asked in any order, are those of the reference packer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import DatasetError
from cloudload.run.lengths.row_pieces import RowPieces, RowSpans, check_has_rows, find_by_runs
from cloudload.system.arrays import Ints
from testkit.tiny_runs import TinyRun, name_documents

LENGTHS = st.lists(st.integers(0, 12), min_size=2, max_size=40).filter(
    lambda lengths: any(lengths[::2]) and any(lengths[1::2]) and len(lengths) % 2 == 0
)
ASKED = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=12)


def open_rows(run: TinyRun, *cursors: tuple[int, int, int]) -> RowPieces:
    starts = np.array(cursors or [(0, 0, 0)] * run.recipe.num_lanes, np.int64)
    return RowPieces(run.lengths.walkers[0], starts)


def find(rows: RowPieces, *asked: tuple[int, int]) -> list[list[int]]:
    """The pieces (row, lane, ordinal, start, stop) of rows, each given by lane and index."""
    lanes, numbers = np.array(asked, np.int64).reshape(-1, 2).T
    pieces: list[list[int]] = name_documents(rows.find(lanes, numbers)).tolist()
    return pieces


@given(
    lengths=LENGTHS,
    packing=st.sampled_from([("concat", "cut"), ("one_per_row", "cut"), ("one_per_row", "rows")]),
    turns=st.lists(ASKED, min_size=1, max_size=3),
)
def test_rows_are_those_of_the_packer_in_any_order(
    lengths: list[int], packing: tuple[str, str], turns: list[list[tuple[int, int]]]
) -> None:
    run = TinyRun(lengths, packing=packing[0], overflow=packing[1])
    rows = open_rows(run)
    expected = [run.naive.lane_rows(lane, 31) for lane in (0, 1)]
    for asked in turns:
        assert find(rows, *asked) == [
            [row, lane, *piece[:3]]
            for row, (lane, index) in enumerate(asked)
            for piece in expected[lane][index].pieces
        ]


def test_a_row_begins_within_one_document_and_ends_with_the_next() -> None:
    run = TinyRun([9, 1, 9, 1, 8, 9, 1, 7, 5, 9], num_lanes=5, seq_len=8)
    assert run.naive.documents(2, 2) == [9, 7]
    assert find(open_rows(run), (2, 1)) == [[0, 2, 0, 8, 9], [0, 2, 1, 0, 7]]


def test_a_document_longer_than_a_row_is_cut_where_rows_end() -> None:
    run = TinyRun([3, 12], num_lanes=1)
    assert find(open_rows(run), (0, 0), (0, 1), (0, 2)) == [
        [0, 0, 0, 0, 3],
        [0, 0, 1, 0, 2],
        [1, 0, 1, 2, 7],
        [2, 0, 1, 7, 12],
    ]


def test_documents_without_tokens_have_no_piece() -> None:
    run = TinyRun([2, 0, 3, 0], num_lanes=1)
    assert find(open_rows(run), (0, 1)) == [[0, 0, 4, 0, 2], [0, 0, 6, 0, 3]]


def test_a_row_of_more_documents_than_are_measured_at_first() -> None:
    run = TinyRun([1, *[0] * 19], num_lanes=1, seq_len=3)
    assert find(open_rows(run), (0, 0)) == [[0, 0, 20 * each, 0, 1] for each in range(3)]


def test_the_first_row_continues_the_document_of_the_starting_cursor() -> None:
    run = TinyRun([7, 4], num_lanes=1)
    rows = open_rows(run, (0, 5, 7))
    assert find(rows, (0, 0), (0, 1)) == [
        [0, 0, 0, 5, 7],
        [0, 0, 1, 0, 3],
        [1, 0, 1, 3, 4],
        [1, 0, 2, 0, 4],
    ]


def test_min_tokens_keeps_the_rest_of_the_document_of_the_starting_cursor() -> None:
    run = TinyRun([3, 6], num_lanes=1, min_tokens=5)
    rows = open_rows(run, (0, 1, 3))
    assert find(rows, (0, 0)) == [[0, 0, 0, 1, 3], [0, 0, 1, 0, 3]]


def test_with_rows_of_one_document_the_next_row_of_a_long_one_goes_on_where_it_was_cut() -> None:
    run = TinyRun([12, 2], num_lanes=1, packing="one_per_row", overflow="rows")
    rows = open_rows(run, (0, 5, 12))
    assert find(rows, (0, 2), (0, 0), (0, 1)) == [
        [0, 0, 1, 0, 2],
        [1, 0, 0, 5, 10],
        [2, 0, 0, 10, 12],
    ]


def test_with_cut_off_documents_the_next_row_begins_with_the_next_document() -> None:
    run = TinyRun([12, 2], num_lanes=1, packing="one_per_row")
    rows = open_rows(run)
    assert find(rows, (0, 0)) == [[0, 0, 0, 0, 5]]
    assert find(rows, (0, 1)) == [[0, 0, 1, 0, 2]]
    assert find(rows, (0, 2)) == [[0, 0, 2, 0, 5]]


@pytest.mark.parametrize("length", [5, 7, 10])
def test_the_next_rows_begin_where_the_last_ones_ended(length: int) -> None:
    """Rows that end with a document, and within one, as found one after another and afresh."""
    run = TinyRun([length, 3], num_lanes=1)
    rows, fresh = open_rows(run), [row for index in range(9) for row in [(0, index)]]
    expected = find(open_rows(run), *fresh)
    one_by_one = [[index, *piece[1:]] for index in range(9) for piece in find(rows, (0, index))]
    assert one_by_one == expected


def test_a_repeated_row_has_its_pieces_each_time() -> None:
    run = TinyRun([3, 4], num_lanes=1)
    pieces = [[0, 0, 3], [1, 0, 2]]
    assert find(open_rows(run), (0, 0), (0, 0)) == [
        *([0, 0, *piece] for piece in pieces),
        *([1, 0, *piece] for piece in pieces),
    ]


def test_a_row_that_was_found_before_is_found_again() -> None:
    rows = open_rows(TinyRun([3, 4], num_lanes=1))
    first = find(rows, (0, 0), (0, 1))
    assert find(rows, (0, 0), (0, 1)) == first
    assert find(rows, (0, 1)) == [[0, *piece[1:]] for piece in first if piece[0] == 1]


def test_no_rows_have_no_pieces() -> None:
    assert find(open_rows(TinyRun([3, 4]))) == []


def test_a_lane_without_tokens_is_named() -> None:
    run = TinyRun([3, 0, 4, 0])
    with pytest.raises(DatasetError, match="lane 1 has no tokens in a whole epoch"):
        find(open_rows(run), (0, 3), (1, 3))


def test_the_first_dry_lane_is_named_and_none_if_none_is_dry() -> None:
    check_has_rows(np.array([4, 7]), np.array([False, False]))
    with pytest.raises(DatasetError, match="lane 7 has"):
        check_has_rows(np.array([4, 7, 9]), np.array([False, True, True]))


def test_rows_are_found_by_runs_of_consecutive_rows_of_a_lane() -> None:
    """Rows 5 6 of lane 1 are one run, though asked apart; row 7 of lane 2 does not continue it."""
    seen: list[RowSpans] = []

    def list_pieces(runs: RowSpans, first_rows: Ints) -> Ints:
        seen.append(runs)
        assert first_rows.tolist() == [0, 1, 3, 4]
        rows = np.arange(5)
        return np.column_stack([rows, 10 * rows, rows, rows])

    lanes, numbers = np.array([1, 2, 1, 0, 1, 1]), np.array([6, 7, 5, 2, 8, 6])
    pieces = find_by_runs(lanes, numbers, list_pieces)
    [runs] = seen
    assert runs.lanes.tolist() == [0, 1, 1, 2]
    assert runs.firsts.tolist() == [2, 5, 8, 7]
    assert runs.counts.tolist() == [1, 2, 1, 1]
    # distinct rows are sorted by lane and index: (0, 2) (1, 5) (1, 6) (1, 8) (2, 7)
    assert pieces[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert pieces[:, 1].tolist() == [20, 40, 10, 0, 30, 20]


def test_rows_with_several_pieces_and_none_are_relabelled() -> None:
    def list_pieces(_: RowSpans, __: Ints) -> Ints:
        rows = np.array([0, 0, 2])  # row 1 has no pieces
        return np.column_stack([rows, [7, 8, 9], rows, rows, rows])

    lanes, numbers = np.zeros(4, np.int64), np.array([2, 1, 0, 2])
    pieces = find_by_runs(lanes, numbers, list_pieces)
    assert pieces[:, :2].tolist() == [[0, 9], [2, 7], [2, 8], [3, 9]]
