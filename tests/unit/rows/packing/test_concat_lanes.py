"""`ConcatLanes` returns the same rows, cursors and counts as a reference packer for each lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.rows.packing.concat_lanes import ConcatLanes
from cloudload.rows.packing.lane_packer import LaneRows
from cloudload.rows.packing.packers import Packing
from cloudload.system.arrays import Ints
from testkit.examples import EXAMPLES
from testkit.twin_lanes import LANES, Corpus, Leg, corpora, long_run, run, same_or_other

PACKINGS = [("concat", "cut"), ("one_per_row", "cut"), ("one_per_row", "rows")]
"""(packing, overflow)"""
packings = st.sampled_from(PACKINGS)


def concat(seq_len: int) -> Packing:
    return Packing("concat", seq_len, 1, "cut")


def concat_lanes(packing: Packing, cursors: Ints, residues: list[bytes] | None) -> LaneRows:
    assert residues is None
    return ConcatLanes(packing, LANES, cursors)


@settings(max_examples=5 * EXAMPLES)
@given(packings, corpora, same_or_other)
def test_lanes_of_any_documents_and_any_state_give_what_packers_give(
    packing: tuple[str, str], corpus: Corpus, legs: list[Leg]
) -> None:
    name, overflow = packing
    run(name, concat_lanes, corpus, legs, overflow)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "overflow"), PACKINGS)
def test_long_runs_with_many_states_give_what_packers_give(
    name: str, overflow: str, seed: int
) -> None:
    assert run(name, concat_lanes, *long_run(seed), overflow)


def test_the_trace_of_the_docstring() -> None:
    lanes, lane = ConcatLanes(concat(5), 1, np.zeros((1, 2), np.int64)), np.array([0])
    documents = Corpus([4, 7, 2]).read(np.zeros(3, np.int64), np.arange(3))
    documents.table[:, 5] = [4, 7, 2]
    lanes.add(documents)
    assert lanes.missing(lane, np.array([3])).tolist() == [2]
    cut = lanes.cut(lane, np.array([9]))
    assert cut.pieces.tolist() == [[0, 0, 0, 4], [0, 1, 0, 1], [1, 1, 1, 6]]
    assert cut.cursors.tolist() == [[1, 1], [1, 6]]
    assert cut.counted[:, 0].tolist() == [0]


def test_a_cursor_beyond_the_end_of_its_document_names_the_lane() -> None:
    lanes = ConcatLanes(concat(8), 2, np.array([[0, 0], [4, 30]]))
    documents = Corpus([21]).read(np.array([1]), np.array([4]))
    with pytest.raises(ValueError, match=r"^lane 1: the cursor is at token 30 of document 4, but"):
        lanes.add(documents)


def test_a_document_that_is_not_the_cursors_names_the_lane() -> None:
    lanes = ConcatLanes(concat(8), 2, np.array([[0, 0], [4, 3]]))
    documents = Corpus([21]).read(np.array([1]), np.array([5]))
    with pytest.raises(
        ValueError, match=r"^lane 1: the cursor is at token 3 of document 4, but document 5 has 2"
    ):
        lanes.add(documents)
