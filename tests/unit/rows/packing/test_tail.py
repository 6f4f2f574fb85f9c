"""The tail packs the remnants of all lanes as one sequence, and skips delivered rows."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import EMPTY_GROUP, encode_residue
from cloudload.rows.packing.tables import (
    PIECE_START,
    PIECE_STOP,
    REMNANT_ORDINAL,
    Size,
)
from cloudload.rows.packing.tail import (
    Stages,
    Tail,
    counts_of_sizes,
    next_stages,
    pack_tail,
    take_rows,
)
from cloudload.stats import DOCUMENTS, EMPTY, FAILED, FILTERED

CONCAT = Packing("concat", 5, 0, "cut")


def tail_of(
    sizes: list[list[int]],
    *,
    packing: Packing = CONCAT,
    cursors: list[tuple[int, int]] | None = None,
    residues: list[bytes] | None = None,
    stages: Stages = (),
) -> Tail:
    return pack_tail(
        packing,
        start_row=100,
        stages=stages,
        cursors=np.array(cursors or [(0, 0)] * len(sizes)),
        residues=residues or [b""] * len(sizes),
        sizes=[np.array(lane, np.int64) for lane in sizes],
    )


def rows_of(tail: Tail) -> list[list[tuple[int, int, int, int]]]:
    """The pieces of each row of the tail: (lane, ordinal, start token, stop token)."""
    return [
        [
            (*tail.remnants[remnant, :2].tolist(), start, stop)
            for _, remnant, start, stop in tail.find(np.array([row])).tolist()
        ]
        for row in range(tail.first_row, tail.end)
    ]


def counted_with(tail: Tail, row: int) -> list[list[int]]:
    """The remnants whose documents are counted with a row."""
    remnants: list[list[int]] = tail.find_counted(np.array([row]))[1].tolist()
    return remnants


def test_documents_of_all_lanes_take_turns_and_only_the_last_row_is_short() -> None:
    tail = tail_of([[4], [3, 1], [2]])
    assert rows_of(tail) == [
        [(0, 0, 0, 4), (1, 0, 0, 1)],
        [(1, 0, 1, 3), (2, 0, 0, 2), (1, 1, 0, 1)],
    ]
    assert (tail.first_row, tail.num_rows, tail.end) == (100, 2, 102)
    assert [tail.num_tokens(row) for row in (0, 100, 101, 102, 999)] == [10, 10, 5, 0, 0]


def test_tokens_that_are_in_rows_of_lanes_are_not_in_the_tail() -> None:
    assert rows_of(tail_of([[4, 2]], cursors=[(7, 3)])) == [[(0, 7, 3, 4), (0, 8, 0, 2)]]
    with pytest.raises(ValueError, match="lane 0 is at token 5 of document 7, which has 4 tokens"):
        tail_of([[4]], cursors=[(7, 5)])


def test_documents_come_by_ordinal_and_then_by_lane() -> None:
    tail = tail_of([[1, 1], [1], [1, 1]], cursors=[(7, 0), (9, 0), (7, 0)])
    assert tail.remnants[:, :2].tolist() == [[0, 7], [2, 7], [0, 8], [2, 8], [1, 9]]


def test_a_tail_of_no_tokens_has_no_rows() -> None:
    cases: list[list[list[int]]] = [[[], []], [[0, Size.FILTERED], [Size.ABSENT]]]
    for sizes in cases:
        tail = tail_of(sizes)
        assert (tail.num_rows, tail.end) == (0, 100)
        assert tail.find(np.array([100])).tolist() == counted_with(tail, 100) == []
        assert tail.num_tokens(0) == 0


def test_a_row_counts_the_documents_that_its_cursor_passes() -> None:
    """The cursor after row 100 is in the second document, and the last row passes all."""
    tail = tail_of([[4, 0, 3, Size.FILTERED]], cursors=[(2, 0)])
    assert rows_of(tail) == [[(0, 2, 0, 4), (0, 4, 0, 1)], [(0, 4, 1, 3)]]
    rows, counted = tail.find_counted(np.array([102, 101, 100, 101]))
    assert rows.tolist() == [1, 1, 2, 2, 3, 3]
    assert counted[:, REMNANT_ORDINAL].tolist() == [4, 5, 2, 3, 4, 5]
    assert len(counted_with(tail_of([[4, Size.FILTERED]]), 100)) == 2


def test_rows_after_the_end_are_empty() -> None:
    tail = tail_of([[4]])
    for row in (101, 102, 10**9):
        assert len(tail.find(np.array([row]))) == len(counted_with(tail, row)) == 0


def test_documents_need_not_be_fair_in_the_tail() -> None:
    """No long documents follow for which short ones must wait, so rows need only be full."""
    packing = Packing("best_fit", 5, 3, "cut", fair_from=0)
    assert rows_of(tail_of([[3, 3, 2, 2]], packing=packing)) == [
        [(0, 0, 0, 3), (0, 2, 0, 2)],
        [(0, 1, 0, 3), (0, 3, 0, 2)],
    ]


def test_a_statistic_counts_a_document_by_its_size() -> None:
    sizes = np.array([5, 1, 0, Size.FILTERED, Size.FAILED])
    assert counts_of_sizes(sizes).tolist() == [DOCUMENTS, DOCUMENTS, EMPTY, FILTERED, FAILED]


def test_what_a_lane_held_back_is_in_the_tail() -> None:
    residue = EMPTY_GROUP + encode_residue([(2, 1, 4)])
    best_fit = Packing("best_fit", 5, 2, "cut")
    tail = tail_of([[2]], packing=best_fit, cursors=[(3, 0)], residues=[residue])
    assert rows_of(tail) == [[(0, 2, 1, 4), (0, 3, 0, 2)]]
    assert [remnant[REMNANT_ORDINAL] for remnant in counted_with(tail, 100)] == [3]


def test_filtered_documents_finish_with_a_row_and_absent_ones_are_nothing() -> None:
    tail = tail_of([[5, Size.FILTERED, 3], [Size.ABSENT, Size.FILTERED]])
    assert len(tail.remnants) == 4
    assert [len(counted_with(tail, row)) for row in (100, 101, 102)] == [1, 3, 0]


@pytest.mark.parametrize(
    "taken", [[], [100], [101, 103], [99, 102, 104, 999], [100, 101, 102, 103]]
)
def test_some_rows_of_a_tail_are_those_rows(taken: list[int]) -> None:
    tail = tail_of([[4, 9, Size.FILTERED], [0, 3], [1]])
    assert tail.end == 104
    part = take_rows(tail, np.array(taken, np.int64))
    assert (part.first_row, part.end) == (100, 104)
    for row, whole, found in zip(range(100, 104), rows_of(tail), rows_of(part), strict=True):
        assert found == (whole if row in taken else [])
        if row in taken:
            assert counted_with(part, row) == counted_with(tail, row)
    assert (len(part.remnants) < len(tail.remnants)) == (taken != [100, 101, 102, 103])


@pytest.mark.parametrize("rows", range(4))
def test_rows_that_were_delivered_with_another_length_are_skipped(rows: int) -> None:
    sizes = [[4, 9], [6]]
    delivered = rows_of(tail_of(sizes, packing=Packing("concat", 5, 0, "cut")))[:rows]
    tail = tail_of(sizes, packing=Packing("concat", 7, 0, "cut"), stages=((5, rows),))
    num_tokens = [
        int((part[:, PIECE_STOP] - part[:, PIECE_START]).sum())
        for row in range(tail.first_row, tail.end)
        for part in [tail.find(np.array([row]))]
    ]
    assert tail.first_row == 100 + rows
    assert sum(num_tokens) == 19 - sum(stop - start for row in delivered for *_, start, stop in row)
    assert all(number == 7 for number in num_tokens[:-1])


@pytest.mark.parametrize(
    ("stages", "rows"),
    [
        ((), [[(0, 0, 0, 4), (1, 0, 0, 3)], [(1, 0, 3, 6), (0, 1, 0, 4)], [(0, 1, 4, 9)]]),
        (((5, 1),), [[(1, 0, 1, 6), (0, 1, 0, 2)], [(0, 1, 2, 9)]]),
        (((5, 2),), [[(0, 1, 0, 7)], [(0, 1, 7, 9)]]),
        (((5, 1), (3, 2)), [[(0, 1, 1, 8)], [(0, 1, 8, 9)]]),
        (((5, 1), (7, 1)), [[(1, 0, 1, 6), (0, 1, 0, 2)], [(0, 1, 2, 9)]]),  # still in stage 2
        (((5, 1), (3, 2), (7, 1)), [[(0, 1, 1, 8)], [(0, 1, 8, 9)]]),
        (((5, 4),), []),
        (((5, 3), (3, 2)), []),
    ],
    ids=str,
)
def test_a_stage_begins_after_the_rows_that_were_delivered(
    stages: Stages, rows: list[list[tuple[int, int, int, int]]]
) -> None:
    tail = tail_of([[4, 9], [6]], packing=Packing("concat", 7, 0, "cut"), stages=stages)
    assert rows_of(tail) == rows


def test_what_waits_after_a_stage_is_packed_first_and_not_counted_again() -> None:
    """Of documents of 3, 4 and 9 tokens, row 0 holds 5 of the last, and all others wait."""
    best_fit = Packing("best_fit", 7, 4, "cut")
    tail = tail_of([[3, 4, 9, Size.FILTERED]], packing=best_fit, stages=((5, 1),))
    assert tail.first_row == 101
    assert rows_of(tail) == [[(0, 1, 0, 4), (0, 0, 0, 3)], [(0, 2, 5, 9)]]
    assert tail.remnants[:, -1].tolist() == [Size.ABSENT, Size.ABSENT, 9, Size.FILTERED]


def test_the_rest_of_a_long_document_waits_after_a_stage() -> None:
    best_fit = Packing("best_fit", 7, 4, "cut")
    tail = tail_of([[9, 5]], packing=best_fit, stages=((5, 2),), cursors=[(3, 0)])
    assert rows_of(tail) == [[(0, 3, 5, 9)]]


def test_documents_without_tokens_after_the_last_stage_were_counted_with_it() -> None:
    tail = tail_of([[5, Size.FILTERED]], packing=Packing("concat", 7, 0, "cut"), stages=((5, 1),))
    assert (tail.first_row, tail.num_rows, len(tail.remnants)) == (101, 0, 0)


def test_the_stages_of_a_tail_are_its_lengths_and_rows() -> None:
    assert next_stages((), 5, 100, 103) == ((5, 3),)
    assert next_stages(((5, 3),), 5, 100, 104) == ((5, 4),)
    assert next_stages(((5, 3),), 7, 100, 104) == ((5, 3), (7, 1))
    assert next_stages(((5, 3), (7, 1)), 7, 100, 106) == ((5, 3), (7, 3))
    assert next_stages(((5, 3), (7, 1)), 5, 100, 106) == ((5, 3), (7, 1), (5, 2))
