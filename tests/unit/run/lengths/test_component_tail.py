"""The tail of a run packs what is left of its documents, and a state that does not fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.errors import DatasetError, StreamChangedError
from cloudload.rows.packing.residue import encode_residue
from cloudload.rows.packing.tables import Size
from cloudload.run.lengths.ending import end_corpus, pack_component_tail
from cloudload.run.position import LaneArrays, LaneLog, Position
from testkit.tiny_runs import tiny_recipe

RECIPE = tiny_recipe([4], epochs=1)


def ended(*cursors: tuple[int, int, int]) -> LaneArrays:
    return LaneArrays(np.array([cursors]), None, np.zeros((1, 7), np.int64))


def sizes(*lanes: list[int]) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [np.array(lane, np.int64) for lane in lanes]


def test_the_rest_of_all_lanes_is_packed_by_ordinal_and_then_by_lane() -> None:
    """Lane 0 has 2 of 6 tokens left, and document 3 of 4; lane 1 has document 2 of 3."""
    tail = pack_component_tail(
        RECIPE, stages=(), ended=ended((2, 4, 6), (2, 0, 0)), sizes=sizes([6, 4], [3])
    )
    assert tail.remnants[:, :4].tolist() == [[0, 2, 4, 6], [1, 2, 0, 3], [0, 3, 0, 4]]
    assert (tail.first_row, tail.end) == (0, 2)
    assert tail.pieces.tolist() == [[0, 0, 4, 6], [0, 1, 0, 3], [1, 2, 0, 4]]


def test_earlier_stages_keep_the_rows_that_were_delivered() -> None:
    tail = pack_component_tail(
        RECIPE, stages=((4, 2),), ended=ended((0, 0, 0), (0, 0, 0)), sizes=sizes([9], [4])
    )
    assert (tail.first_row, tail.end) == (2, 3)
    assert tail.pieces.tolist() == [[0, 0, 8, 9], [0, 1, 0, 4]]


def test_holes_are_not_documents_and_filtered_ones_have_no_piece() -> None:
    tail = pack_component_tail(
        RECIPE,
        stages=(),
        ended=ended((0, 0, 0), (0, 0, 0)),
        sizes=sizes([Size.FILTERED, 2], [Size.ABSENT, 0]),
    )
    assert tail.remnants[:, 1].tolist() == [0, 1, 1]
    assert tail.pieces.tolist() == [[0, 1, 0, 2]]


def test_waiting_spans_of_best_fit_are_left_too_and_were_counted() -> None:
    recipe = tiny_recipe([4], epochs=1, packing="best_fit")
    residues = np.array([[encode_residue(()) + encode_residue([(0, 1, 4)]), b""]], object)
    arrays = LaneArrays(ended((1, 0, 0), (1, 0, 0)).cursors, residues, np.zeros((1, 7), np.int64))
    tail = pack_component_tail(recipe, stages=(), ended=arrays, sizes=sizes([], [2]))
    assert tail.remnants.tolist() == [[0, 0, 1, 4, Size.ABSENT], [1, 1, 0, 2, 2]]
    assert tail.pieces.tolist() == [[0, 0, 1, 4], [0, 1, 0, 2]]


def test_a_cursor_beyond_its_document_is_a_state_of_other_data() -> None:
    with pytest.raises(
        StreamChangedError, match=r"lane 1 is at token 4 of document 2, which has 3"
    ):
        pack_component_tail(
            RECIPE, stages=(), ended=ended((2, 0, 0), (2, 4, 6)), sizes=sizes([6], [3])
        )


# ------------------------------------------------------------------------- measured endings


def dry(row: int, *cursors: tuple[int, int, int]) -> Position:
    """The position of lanes that ended at a row."""
    return Position(row, row, LaneLog(ended(*cursors)))


def test_a_corpus_ends_after_the_rows_of_the_tail_that_begins_at_the_dry_row() -> None:
    """The run has delivered 6 rows when row 9 is dry, and its tail has 2 rows."""
    at = dry(6, (1, 0, 0), (1, 0, 0))
    ending = end_corpus(RECIPE, at, dry(9, (2, 4, 6), (2, 0, 0)), sizes([6, 4], [3]))
    assert (ending.start, ending.lane_ends, ending.end) == (6, (9,), 11)
    assert (ending.stream_ends, ending.tail_start) == ((11,), 9)
    taken = ending.take(np.array([7, 10])).packed
    assert taken is not None
    assert taken.find(np.array([0])).tolist() == []
    assert len(taken.find(np.array([1]))) == 1


def test_a_run_that_resumes_in_its_tail_ends_where_it_did() -> None:
    at = dry(11, (0, 0, 0), (0, 0, 0)).with_lanes(tails=(((4, 2),),))
    ending = end_corpus(RECIPE, at, at, sizes([9], [4]))
    assert (ending.lane_ends, ending.end, ending.tail_start) == ((11,), 12, 9)
    assert ending.stages_of(0) == ((4, 2),)


def test_a_corpus_may_end_with_its_lanes_but_not_without_rows() -> None:
    full = dry(4, (2, 0, 0), (2, 0, 0))
    assert end_corpus(RECIPE, full, full, sizes([], [])).end == 4
    nothing = dry(0, (0, 0, 0), (0, 0, 0))
    with pytest.raises(DatasetError, match="no document of a has any tokens"):
        end_corpus(RECIPE, nothing, nothing, sizes([0], [0]))
