"""A lane of `BestFitLanes` places pieces into open rows, in arrays that each test spells out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.best_fit_lane import (
    BestFitLane,
    decode_pieces,
    encode_pieces,
    find_stops,
    list_packed,
    restore_lane,
    split_documents,
)
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import EMPTY_GROUP, decode_span, encode_residue, encode_spans
from cloudload.rows.packing.tables import (
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    SIZE,
    START,
)
from cloudload.system.arrays import Ints


def packing(*, open_rows: int = 9, fair_from: int | None = None, seq_len: int = 5) -> Packing:
    return Packing("best_fit", seq_len, open_rows, "cut", fair_from)


def pack(lane: BestFitLane, sizes: list[int], *, first: int = 0) -> list[str]:
    """Pack documents a, b, … of these sizes, which fit in a row. Return the rows as text."""
    for ordinal, size in enumerate(sizes, first):
        [span] = encode_spans(np.array([[ordinal, 0, size]]))
        lane.pack(chr(97 + ordinal).encode(), size, span, ordinal + 1, 0)
    return [row[3].decode() for row in lane.rows]


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([5], ["a"]),
        ([2, 3], ["ab"]),
        ([4, 2], []),
        ([4, 2, 1], ["ac"]),  # the fullest row that has space, not the first one
        ([2, 4, 1], ["bc"]),
        ([3, 3, 2], ["ac"]),  # of two rows with the same space, the one that waits longer
        ([4, 3, 1, 1, 1], ["ac", "bde"]),  # after c, b is the fullest row, and d goes into it
        ([1, 1, 1, 1, 1], ["abcde"]),
        ([2, 0, 3], ["ac"]),  # an empty piece is in no row
        ([0, 0], []),
    ],
    ids=str,
)
def test_a_piece_goes_into_the_fullest_row_that_has_space(
    sizes: list[int], rows: list[str]
) -> None:
    assert pack(BestFitLane(packing()), sizes) == rows


@pytest.mark.parametrize(("open_rows", "rows"), [(1, ["b", "a"]), (2, ["b"]), (3, [])], ids=str)
def test_the_fullest_row_ends_when_too_many_are_open(open_rows: int, rows: list[str]) -> None:
    assert pack(BestFitLane(packing(open_rows=open_rows)), [3, 4, 3]) == rows


def test_a_row_has_the_cursor_and_the_residue_after_it() -> None:
    lane = BestFitLane(packing())
    pack(lane, [3, 1, 5, 2])
    residue = EMPTY_GROUP + encode_residue([(0, 0, 3), (1, 0, 1)])
    assert [row[:3] for row in lane.rows] == [(3, 0, residue)]
    pack(lane, [1], first=4)
    assert [row[:3] for row in lane.rows][1:] == [(5, 0, EMPTY_GROUP + encode_residue([(3, 0, 2)]))]


def test_a_row_lists_the_last_pieces_of_the_documents_that_its_cursor_passes() -> None:
    lane = BestFitLane(packing())
    pack(lane, [3, 0, 5, 0, 2])
    assert [row[4] for row in lane.rows] == [b"abc", b"de"]


def test_a_long_document_is_passed_with_its_last_piece() -> None:
    lane = BestFitLane(packing())
    spans = encode_spans(np.array([[0, 0, 5], [0, 5, 10], [0, 10, 12]]))
    for piece, (size, ordinal, offset) in enumerate([(5, 0, 5), (5, 0, 10), (2, 1, 0)]):
        lane.pack(str(piece).encode(), size, spans[piece], ordinal, offset)
    assert [row[:2] + row[3:] for row in lane.rows] == [(0, 5, b"0", b""), (0, 10, b"1", b"")]
    pack(lane, [0, 0, 3], first=1)
    assert lane.rows[-1] == (4, 0, b"", b"2d", b"2bcd")


def test_few_documents_may_wait_at_a_fair_start() -> None:
    """Of the first n documents, at most √n wait in two or more rows."""
    assert pack(BestFitLane(packing(fair_from=0)), [3, 3, 3]) == ["a", "b"]
    assert pack(BestFitLane(packing(fair_from=0)), [3, 3, 2, 3, 4]) == ["a", "bc"]
    later = BestFitLane(packing(fair_from=7))
    assert pack(later, [3, 3, 3], first=7) == ["h", "i"]
    assert pack(BestFitLane(packing(fair_from=3)), [3, 3], first=7) == []


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([1, 1, 1, 5], ["d"]),  # 2 of 5 tokens are free, so the row is not 5/8 full
        ([1, 1, 1, 1, 5], ["abcd", "e"]),
        ([4, 5], ["a", "b"]),
    ],
    ids=str,
)
def test_a_nearly_full_single_row_ends_before_a_document_as_long_as_a_row(
    sizes: list[int], rows: list[str]
) -> None:
    assert pack(BestFitLane(packing(fair_from=0)), sizes) == rows


def test_a_single_row_that_ends_before_a_long_document_leaves_no_residue() -> None:
    lane = BestFitLane(packing(fair_from=0))
    pack(lane, [4, 5])
    assert [row[:3] for row in lane.rows] == [(1, 0, b""), (2, 0, b"")]


def test_documents_of_a_row_that_ended_no_longer_wait() -> None:
    """After 4 documents, 2 may wait, and only the last two do."""
    assert pack(BestFitLane(packing(fair_from=0)), [4, 5, 3, 3]) == ["a", "b"]


def test_a_single_row_does_not_end_within_a_long_document() -> None:
    lane = BestFitLane(packing(fair_from=0))
    pack(lane, [4])
    [span] = encode_spans(np.array([[1, 2, 7]]))
    lane.pack(b"b", 5, span, 2, 0)
    assert [row[3] for row in lane.rows] == [b"b"]


def test_a_single_row_of_few_documents_waits_for_more() -> None:
    """Two documents are no more than half of √16, and one is no more than half of √4."""
    for sizes, read_before, rows in [
        ([2, 2, 5], 14, ["c"]),
        ([2, 2, 5], 13, ["ab", "c"]),
        ([4, 5], 3, ["b"]),
        ([4, 5], 2, ["a", "b"]),
    ]:
        assert pack(BestFitLane(packing(fair_from=-read_before)), sizes) == rows


def document_table(*documents: tuple[int, int, int, int]) -> Ints:
    table = np.zeros((len(documents), NUM_DOCUMENT_COLUMNS), np.int64)
    table[:, [FLAT_LANE, ORDINAL, SIZE, START]] = np.array(documents).reshape(-1, 4)
    return table


def test_documents_are_split_at_every_seq_len_from_their_start() -> None:
    table = document_table((7, 3, 12, 0), (7, 4, 0, 0), (7, 5, 5, 0), (2, 0, 9, 3))
    split = split_documents(table, 5)
    assert split[:, ORDINAL].tolist() == [3, 3, 3, 4, 5, 0, 0]
    assert split[:, START].tolist() == [0, 5, 10, 0, 0, 3, 8]
    assert find_stops(split, 5).tolist() == [5, 10, 12, 0, 5, 8, 9]
    assert split[:, SIZE].tolist() == [12, 12, 12, 0, 5, 9, 9]


def test_documents_that_fit_are_not_copied() -> None:
    table = document_table((0, 0, 5, 0), (0, 1, 7, 2))
    assert split_documents(table, 5) is table


def test_what_is_packed_is_listed_piece_by_piece() -> None:
    table = split_documents(document_table((7, 3, 7, 0), (8, 0, 0, 0), (9, 5, 10, 4)), 5)
    spans, flat_lanes, sizes, ordinals, offsets = list_packed(table, 5)
    assert [decode_span(span) for span in spans] == [
        (3, 0, 5),
        (3, 5, 7),
        (0, 0, 0),
        (5, 4, 9),
        (5, 9, 10),
    ]
    assert flat_lanes == [7, 7, 8, 9, 9]
    assert sizes == [5, 2, 0, 5, 1]
    assert list(zip(ordinals, offsets, strict=True)) == [(3, 5), (4, 0), (1, 0), (5, 9), (6, 0)]


@given(st.lists(st.lists(st.integers(0, (1 << 31) - 1), max_size=4), max_size=5))
def test_joined_pieces_are_decoded_with_the_index_of_their_group(groups: list[list[int]]) -> None:
    joined = [b"".join(encode_pieces(np.array(group, np.int64))) for group in groups]
    owners, pieces = decode_pieces(joined)
    assert owners.tolist() == [index for index, group in enumerate(groups) for _ in group]
    assert pieces.tolist() == [piece for group in groups for piece in group]
    assert pieces.dtype == np.int64


def hold(ordinal: int, start: int, stop: int) -> bytes:
    return chr(97 + ordinal).encode() * (stop - start)


def test_a_restored_lane_has_the_open_rows_of_its_residue() -> None:
    residue = EMPTY_GROUP + encode_residue([(0, 6, 8), (2, 0, 2)]) + encode_residue([(1, 4, 6)])
    lane = restore_lane(packing(), (3, 0), residue, hold)
    assert not lane.rows
    [span] = encode_spans(np.array([[3, 0, 1]]))
    lane.pack(b"d", 1, span, 4, 0)
    assert [row[2:] for row in lane.rows] == [
        (EMPTY_GROUP + encode_residue([(1, 4, 6)]), b"aaccd", b"d")
    ]


def test_a_restored_lane_knows_how_many_documents_wait() -> None:
    """Three wait, and one more is too many of 12 in two rows, but not of 16."""
    residue = EMPTY_GROUP + encode_residue([(0, 0, 2), (2, 0, 1), (1, 0, 1)])
    for fair_from, rows in [(-8, ["aacb"]), (-12, [])]:
        lane = restore_lane(packing(fair_from=fair_from), (3, 0), residue, hold)
        assert pack(lane, [2], first=3) == rows


def test_spans_that_wait_for_another_seq_len_are_packed_first() -> None:
    residue = encode_residue([(0, 0, 7), (1, 1, 4)])
    lane = restore_lane(packing(), (2, 0), residue, hold)
    assert [row[3] for row in lane.rows] == [b"aaaaa", b"aabbb"]
    assert [row[:2] for row in lane.rows] == [(2, 0), (2, 0)]
    assert lane.rows[1][2] == b""


def test_a_lane_without_a_residue_is_empty() -> None:
    assert pack(restore_lane(packing(), (3, 0), b"", hold), [3, 2], first=3) == ["de"]
