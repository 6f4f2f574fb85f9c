"""The tail packs the remnants of all lanes as one sequence, and skips delivered rows."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import EMPTY_GROUP, encode_residue
from cloudload.rows.packing.tables import SIZE_ABSENT, SIZE_FILTERED, TAIL_START, TAIL_STOP
from cloudload.rows.packing.tail import Stages, Tail, next_stages, pack_tail, take_rows

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
            for remnant, start, stop in tail.row_pieces(row).tolist()
        ]
        for row in range(tail.first_row, tail.end)
    ]


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


def test_what_a_lane_held_back_is_in_the_tail() -> None:
    residue = EMPTY_GROUP + encode_residue([(2, 1, 4)])
    best_fit = Packing("best_fit", 5, 2, "cut")
    tail = tail_of([[2]], packing=best_fit, cursors=[(3, 0)], residues=[residue])
    assert rows_of(tail) == [[(0, 2, 1, 4), (0, 3, 0, 2)]]


def test_filtered_documents_finish_with_a_row_and_absent_ones_are_nothing() -> None:
    tail = tail_of([[5, SIZE_FILTERED, 3], [SIZE_ABSENT, SIZE_FILTERED]])
    assert len(tail.remnants) == 4
    assert [len(tail.row_remnants(row)) for row in (100, 101, 102)] == [1, 3, 0]


@pytest.mark.parametrize("taken", [[], [100], [101, 103], [102, 999], [100, 101, 102, 103]])
def test_some_rows_of_a_tail_are_those_rows(taken: list[int]) -> None:
    tail = tail_of([[4, 9, SIZE_FILTERED], [0, 3], [1]])
    assert tail.end == 104
    part = take_rows(tail, np.array(taken, np.int64))
    assert (part.first_row, part.end) == (100, 104)
    for row, whole, found in zip(range(100, 104), rows_of(tail), rows_of(part), strict=True):
        assert found == (whole if row in taken else [])
        if row in taken:
            assert part.row_remnants(row).tolist() == tail.row_remnants(row).tolist()
    assert (len(part.remnants) < len(tail.remnants)) == (len(taken) < 4)


@pytest.mark.parametrize("rows", range(4))
def test_rows_that_were_delivered_with_another_length_are_skipped(rows: int) -> None:
    sizes = [[4, 9], [6]]
    delivered = rows_of(tail_of(sizes, packing=Packing("concat", 5, 0, "cut")))[:rows]
    tail = tail_of(sizes, packing=Packing("concat", 7, 0, "cut"), stages=((5, rows),))
    num_tokens = [
        int((part[:, TAIL_STOP] - part[:, TAIL_START]).sum())
        for part in map(tail.row_pieces, range(tail.first_row, tail.end))
    ]
    assert tail.first_row == 100 + rows
    assert sum(num_tokens) == 19 - sum(stop - start for row in delivered for *_, start, stop in row)
    assert all(number == 7 for number in num_tokens[:-1])


def test_the_stages_of_a_tail_are_its_lengths_and_rows() -> None:
    assert next_stages((), 5, 100, 103) == ((5, 3),)
    assert next_stages(((5, 3),), 5, 100, 104) == ((5, 4),)
    assert next_stages(((5, 3),), 7, 100, 104) == ((5, 3), (7, 1))
