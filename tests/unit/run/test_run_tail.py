"""The tail of a run packs what is left of its documents, and a state that does not fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.errors import DatasetError, StreamChangedError
from cloudload.rows.packing.residue import encode_residue
from cloudload.rows.packing.tables import Size
from cloudload.run.position import LaneArrays
from cloudload.run.run_tail import check_has_tokens, pack_component_tail, pack_run_tail
from testkit.tiny_runs import tiny_recipe

RECIPE = tiny_recipe([4], epochs=1)


def ended(*cursors: tuple[int, int, int]) -> LaneArrays:
    return LaneArrays(np.array([cursors]), None, np.zeros((1, 7), np.int64))


def sizes(*lanes: list[int]) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [np.array(lane, np.int64) for lane in lanes]


def test_the_rest_of_all_lanes_is_packed_by_ordinal_and_then_by_lane() -> None:
    """Lane 0 has 2 of 6 tokens left, and document 3 of 4; lane 1 has document 2 of 3."""
    tail = pack_run_tail(
        RECIPE, start=9, stages=(), ended=ended((2, 4, 6), (2, 0, 0)), sizes=sizes([6, 4], [3])
    )
    assert tail.remnants[:, :4].tolist() == [[0, 2, 4, 6], [1, 2, 0, 3], [0, 3, 0, 4]]
    assert (tail.first_row, tail.end) == (9, 11)
    assert tail.row_pieces(9).tolist() == [[0, 0, 4, 6], [0, 1, 0, 3]]
    assert tail.row_pieces(10).tolist() == [[1, 2, 0, 4]]


def test_earlier_stages_keep_the_rows_that_were_delivered() -> None:
    tail = pack_run_tail(
        RECIPE, start=9, stages=((4, 2),), ended=ended((0, 0, 0), (0, 0, 0)), sizes=sizes([9], [4])
    )
    assert (tail.first_row, tail.end) == (11, 12)
    assert tail.row_pieces(11).tolist() == [[0, 0, 8, 9], [0, 1, 0, 4]]


def test_holes_are_not_documents_and_filtered_ones_have_no_piece() -> None:
    tail = pack_run_tail(
        RECIPE,
        start=0,
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
    tail = pack_run_tail(recipe, start=0, stages=(), ended=arrays, sizes=sizes([], [2]))
    assert tail.remnants.tolist() == [[0, 0, 1, 4, Size.ABSENT], [1, 1, 0, 2, 2]]
    assert tail.row_pieces(0).tolist() == [[0, 0, 1, 4], [0, 1, 0, 2]]


def test_a_tail_of_the_second_component_uses_its_cursors() -> None:
    recipe = tiny_recipe([4], [4], proportions=[1, 1], epochs=1)
    cursors = np.array([[(0, 0, 0)] * 2, [(1, 2, 4), (3, 0, 0)]])
    arrays = LaneArrays(cursors, None, np.zeros((2, 7), np.int64))
    tail = pack_component_tail(
        recipe, start=0, stages=(), ended=arrays, sizes=sizes([4], [5]), component=1
    )
    assert tail.remnants[:, 1:4].tolist() == [[1, 2, 4], [3, 0, 5]]


def test_a_cursor_beyond_its_document_is_a_state_of_other_data() -> None:
    with pytest.raises(
        StreamChangedError, match=r"lane 1 is at token 4 of document 2, which has 3"
    ):
        pack_run_tail(
            RECIPE, start=9, stages=(), ended=ended((2, 0, 0), (2, 4, 6)), sizes=sizes([6], [3])
        )


def test_a_stream_may_have_no_rows_but_a_run_may_not() -> None:
    lanes = {"ended": ended((0, 0, 0), (0, 0, 0)), "sizes": sizes([0], [0])}
    tail = pack_component_tail(RECIPE, start=0, stages=(), **lanes)  # type: ignore[arg-type]
    assert tail.num_rows == 0
    with pytest.raises(DatasetError, match="no document of a has any tokens"):
        pack_run_tail(RECIPE, start=0, stages=(), **lanes)  # type: ignore[arg-type]


def test_a_run_whose_lanes_filled_all_rows_needs_no_tail() -> None:
    tail = pack_run_tail(
        RECIPE, start=4, stages=(), ended=ended((2, 0, 0), (2, 0, 0)), sizes=sizes([], [])
    )
    assert tail.end == 4


def test_the_streams_without_tokens_are_named() -> None:
    check_has_tokens(RECIPE, 1)
    with pytest.raises(DatasetError, match="no document of a, b has any tokens"):
        check_has_tokens(tiny_recipe([1], [1], epochs=1), 0)
