"""`BestFitLanes` returns the same rows, cursors, residues and counts as a reference packer for each
lane."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings

from cloudload.rows.packing.best_fit_lanes import BestFitLanes
from cloudload.rows.packing.lane_packer import LaneRows
from cloudload.rows.packing.packers import Packing
from cloudload.system.arrays import Ints
from testkit.examples import EXAMPLES
from testkit.packer_lanes import PackerLanes
from testkit.twin_lanes import LANES, Corpus, Leg, corpora, long_run, run, same_or_other


def best_fit_lanes(packing: Packing, cursors: Ints, residues: list[bytes] | None) -> LaneRows:
    return BestFitLanes(packing, LANES, cursors, residues)


@settings(max_examples=5 * EXAMPLES)
@given(corpora, same_or_other)
def test_lanes_of_any_documents_and_any_state_give_what_packers_give(
    corpus: Corpus, legs: list[Leg]
) -> None:
    run("best_fit", best_fit_lanes, corpus, legs)


@pytest.mark.parametrize("seed", range(4))
def test_long_runs_with_many_states_give_what_packers_give(seed: int) -> None:
    assert run("best_fit", best_fit_lanes, *long_run(seed))


def test_what_rows_have_taken_is_let_go_and_so_are_documents_without_a_token() -> None:
    lanes, slots = (
        BestFitLanes(Packing("best_fit", 8, 2, "cut"), 1, np.zeros((1, 2), np.int64), None),
        np.array([0]),
    )
    corpus = Corpus([0, 3, 20, 1, 0])
    sizes = set()
    for first in range(0, 2_000, 10):
        documents = corpus.read(np.zeros(10, np.int64), np.arange(first, first + 10))
        ids = weakref.ref(documents.buffers[0].obj)
        lanes.add(documents)
        del documents
        assert ids() is None, (
            "a lane must copy its tokens, so that the buffer of the documents is freed"
        )
        assert lanes.cut(slots, np.array([100])).num_rows > 0
        sizes.add(len(lanes._table))
    assert max(sizes) < 100


@pytest.mark.parametrize("kind", [PackerLanes, BestFitLanes])
class TestWhatCannotBe:
    """`PackerLanes` and `BestFitLanes` refuse impossible values with the same messages."""

    def test_a_cursor_beyond_the_end_of_its_document(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 2, np.array([[0, 0], [4, 30]]), None)
        with pytest.raises(
            ValueError,
            match=r"^lane 1: the cursor is at token 30 of document 4, but document 4 has 22 "
            r"tokens$",
        ):
            lanes.add(Corpus([21]).read(np.array([1]), np.array([4])))

    def test_a_cursor_in_a_document_that_never_arrives(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 2, np.array([[0, 0], [4, 3]]), None)
        with pytest.raises(
            ValueError,
            match=r"^lane 1: the cursor is at token 3 of document 4, but document 5 has 22 tokens$",
        ):
            lanes.add(Corpus([21]).read(np.array([1]), np.array([5])))

    def test_a_document_that_has_another_size_when_it_is_read_again(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        residue = np.array([0, 1, 2, 0, 5], "<i4").tobytes()
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 1, np.array([[4, 0]]), [residue])
        slots, ordinals = lanes.unread(np.array([0]))
        assert (slots.tolist(), ordinals.tolist()) == ([0], [2])
        with pytest.raises(ValueError, match=r"^lane 0: document 2 had 5 tokens, but now has 7$"):
            lanes.add(Corpus([6]).read(slots, ordinals))

    def test_a_residue_of_longer_rows(self, kind: type[PackerLanes] | type[BestFitLanes]) -> None:
        residue = np.array([0, 1, 2, 0, 9], "<i4").tobytes()
        lanes = kind(
            Packing("best_fit", 8, 2, "cut"),
            3,
            np.array([[0, 0]] * 4 + [[4, 0]]),
            [b""] * 4 + [residue],
        )
        with pytest.raises(
            ValueError,
            match=r"^residues: lane 1 has open rows that do not fit 8 tokens, or are out of order$",
        ):
            lanes.unread(np.array([4]))
