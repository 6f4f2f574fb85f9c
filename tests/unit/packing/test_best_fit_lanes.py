"""`BestFitLanes` gives what a packer for each lane gives: the same rows, cursors, residues and
counts, to the last bit."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.arrays import Ints
from cloudload.packing.best_fit_lanes import BestFitLanes
from cloudload.packing.lane_packer import CutRows, LaneRows, PackerLanes
from cloudload.packing.packers import Packing
from cloudload.packing.residue import unpack_residue
from cloudload.packing.rows import Framing, fill_rows
from cloudload.packing.tables import (
    BASE,
    COUNT,
    EPOCH,
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    PIECE_DOCUMENT,
    SAMPLE,
    SIZE,
    STREAM,
    Documents,
)
from cloudload.stats import DOCUMENTS, EMPTY, FILTERED
from tests.support.examples import EXAMPLES

LANES = 4
FRAMES = [(None, None), (1, None), (None, 2), (1, 2)]
"""By stream."""
FRAMING = Framing.of(FRAMES)
NUM_FRAMING = np.array([sum(each is not None for each in frame) for frame in FRAMES])
NUM_BOS = np.array([frame[0] is not None for frame in FRAMES])


@dataclass(frozen=True)
class Step:
    """Documents arrive in each lane, and rows are wanted of it."""

    arrivals: Sequence[int]
    wanted: Sequence[int]
    is_interleaved: bool = False
    """Whether the lanes' documents take turns."""


@dataclass(frozen=True)
class Leg:
    """From a state to the next one."""

    seq_len: int
    open_rows: int
    steps: Sequence[Step]


def packing(leg: Leg) -> Packing:
    return Packing("best_fit", leg.seq_len, leg.open_rows, "cut")


@dataclass
class Corpus:
    """Documents without end: the texts of a lane have these sizes, again and again."""

    sizes: Sequence[int]

    def read(self, slots: Ints, ordinals: Ints) -> Documents:
        table = np.zeros((len(slots), NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, FLAT_LANE], table[:, ORDINAL] = slots, ordinals
        table[:, STREAM] = streams = (slots + ordinals) % len(FRAMES)
        table[:, EPOCH], table[:, SAMPLE] = ordinals // 10, 100 * slots + ordinals
        bodies = np.array(self.sizes, np.int64)[(7 * slots + ordinals) % len(self.sizes)]
        is_left_out = bodies == 3
        table[:, BASE] = np.cumsum(bodies) - bodies - NUM_BOS[streams]
        table[:, SIZE] = np.where(is_left_out, 0, bodies + NUM_FRAMING[streams])
        table[:, COUNT] = np.where(
            is_left_out, FILTERED, np.where(table[:, SIZE] > 0, DOCUMENTS, EMPTY)
        )
        ids = np.repeat(1_000 * (1_000 * slots + ordinals), bodies) + np.arange(bodies.sum())
        firsts = np.repeat(np.cumsum(bodies) - bodies, bodies)
        return Documents(table, (ids - firsts).astype(np.int32))


@dataclass
class Lanes:
    """Both kinds of lanes, side by side; and the state after the rows that they gave."""

    packing: Packing
    cursors: Ints
    residues: list[bytes]
    both: list[LaneRows] = field(init=False)

    def __post_init__(self) -> None:
        self.both = [
            kind(self.packing, LANES, self.cursors.copy(), list(self.residues))
            for kind in (PackerLanes, BestFitLanes)
        ]
        self.begun = self.cursors.copy()
        self.next = self.cursors[:, 0].copy()

    def add(self, corpus: Corpus, slots: Ints, ordinals: Ints) -> None:
        for lanes in self.both:
            has_begun = (self.begun[slots, 0] == ordinals) & (self.begun[slots, 1] > 0)
            lanes.add(corpus.read(slots, ordinals), has_begun)

    def take(self, corpus: Corpus, step: Step) -> None:
        """One step, in which both kinds say the same."""
        slots = np.flatnonzero(np.array(step.arrivals) + np.array(step.wanted))
        again = [lanes.unread(slots) for lanes in self.both]
        np.testing.assert_array_equal(*again)
        self.add(corpus, *again[0])
        numbers = np.array(step.arrivals)[slots]
        new = np.repeat(slots, numbers)
        turns = np.arange(len(new)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        order = np.argsort(turns, kind="stable") if step.is_interleaved else np.arange(len(new))
        self.add(corpus, new[order], (self.next[new] + turns)[order])
        self.next[slots] += numbers
        wanted = np.array(step.wanted)[slots]
        np.testing.assert_array_equal(*(lanes.missing(slots, wanted) for lanes in self.both))
        expected, found = (lanes.cut(slots, wanted) for lanes in self.both)
        self.compare(expected, found)
        self.advance(slots, found)

    def compare(self, expected: CutRows, found: CutRows) -> None:
        for name in ("num_rows", "pieces", "cursors", "counted"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(found, name), name)
            assert getattr(found, name).dtype == np.int64
        assert expected.residues is not None
        assert list(expected.residues) == list(found.residues or ())
        columns = [FLAT_LANE, ORDINAL, STREAM, EPOCH, SAMPLE, SIZE, COUNT]
        np.testing.assert_array_equal(
            *(cut.table[cut.pieces[:, PIECE_DOCUMENT]][:, columns] for cut in (expected, found))
        )
        np.testing.assert_array_equal(self.tokens(expected), self.tokens(found))

    def tokens(self, cut: CutRows) -> Ints:
        out = np.full((len(cut.cursors), self.packing.seq_len), -1, np.int32)
        fill_rows(out, cut.table, cut.buffers, cut.pieces, FRAMING)
        return out.astype(np.int64)

    def advance(self, slots: Ints, cut: CutRows) -> None:
        assert cut.residues is not None
        for slot, stop, number in zip(
            slots.tolist(), np.cumsum(cut.num_rows).tolist(), cut.num_rows.tolist(), strict=True
        ):
            if number:
                self.cursors[slot], self.residues[slot] = (
                    cut.cursors[stop - 1],
                    cut.residues[stop - 1],
                )


def run(corpus: Corpus, legs: Sequence[Leg]) -> int:
    """Go through the legs, each from the state at the end of the one before; returns how many rows
    that were."""
    cursors, residues = np.zeros((LANES, 2), np.int64), [b""] * LANES
    rows = 0
    for number, leg in enumerate(legs):
        if number and leg.seq_len != legs[number - 1].seq_len:
            residues = [
                unpack_residue(residue, int(at))
                for residue, at in zip(residues, cursors[:, 0], strict=True)
            ]
        lanes = Lanes(packing(leg), cursors, residues)
        for step in leg.steps:
            lanes.take(corpus, step)
            rows += sum(step.wanted)
        cursors, residues = lanes.cursors, lanes.residues
    return rows


def numbers_of_lanes(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=LANES, max_size=LANES)


steps = st.builds(Step, numbers_of_lanes(8), numbers_of_lanes(4), st.booleans())
legs = st.builds(
    Leg, st.integers(5, 40), st.integers(1, 5), st.lists(steps, min_size=1, max_size=6)
)
same_or_other = st.lists(legs, min_size=1, max_size=3) | st.builds(
    lambda leg, more: [leg, *(Leg(leg.seq_len, leg.open_rows, each) for each in more)],
    legs,
    st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=2),
)
corpora = st.builds(
    Corpus, st.lists(st.integers(0, 12) | st.integers(0, 130), min_size=1, max_size=40)
)


@settings(max_examples=10 * EXAMPLES, deadline=None)
@given(corpora, same_or_other)
def test_lanes_of_any_documents_and_any_state_give_what_packers_give(
    corpus: Corpus, legs: list[Leg]
) -> None:
    run(corpus, legs)


@pytest.mark.parametrize("seed", range(4))
def test_long_runs_with_many_states_give_what_packers_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(301) < 0.9, rng.integers(0, 30, 301), rng.integers(0, 200, 301))
    legs = [
        Leg(
            int(rng.integers(5, 41)) if number % 3 == 0 else 24,
            int(rng.integers(1, 6)),
            [
                Step(
                    rng.integers(0, 12, LANES).tolist(),
                    rng.integers(0, 6, LANES).tolist(),
                    bool(step % 2),
                )
                for step in range(15)
            ],
        )
        for number in range(8)
    ]
    assert run(Corpus(sizes.tolist()), legs)


def test_what_rows_have_taken_is_let_go_and_so_are_documents_without_a_token() -> None:
    lanes, slots = (
        BestFitLanes(Packing("best_fit", 8, 2, "cut"), 1, np.zeros((1, 2), np.int64), None),
        np.array([0]),
    )
    corpus = Corpus([0, 3, 20, 1, 0])
    sizes = set()
    for first in range(0, 5_000, 10):
        documents = corpus.read(np.zeros(10, np.int64), np.arange(first, first + 10))
        ids = weakref.ref(documents.ids)
        lanes.add(documents, np.zeros(10, np.bool_))
        del documents
        assert ids() is None, "a lane has a copy of its tokens"
        assert lanes.cut(slots, np.array([100])).num_rows > 0
        sizes.add(len(lanes._table))
    assert max(sizes) < 100


@pytest.mark.parametrize("kind", [PackerLanes, BestFitLanes])
class TestWhatCannotBe:
    """Is refused by both in the same words."""

    def test_a_cursor_beyond_the_end_of_its_document(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 2, np.array([[0, 0], [4, 30]]), None)
        with pytest.raises(
            ValueError,
            match=r"^lane 1: the cursor is at token 30 of document 4, but document 4 has 22 "
            r"tokens$",
        ):
            lanes.add(Corpus([21]).read(np.array([1]), np.array([4])), np.array([True]))

    def test_a_cursor_in_a_document_that_never_comes(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 2, np.array([[0, 0], [4, 3]]), None)
        with pytest.raises(
            ValueError,
            match=r"^lane 1: the cursor is at token 3 of document 4, but document 5 has 22 tokens$",
        ):
            lanes.add(Corpus([21]).read(np.array([1]), np.array([5])), np.array([False]))

    def test_a_document_that_has_another_size_when_it_is_read_again(
        self, kind: type[PackerLanes] | type[BestFitLanes]
    ) -> None:
        residue = np.array([0, 1, 2, 0, 5], "<i4").tobytes()
        lanes = kind(Packing("best_fit", 8, 2, "cut"), 1, np.array([[4, 0]]), [residue])
        slots, ordinals = lanes.unread(np.array([0]))
        assert (slots.tolist(), ordinals.tolist()) == ([0], [2])
        with pytest.raises(ValueError, match=r"^lane 0: document 2 had 5 tokens, but now has 7$"):
            lanes.add(Corpus([6]).read(slots, ordinals), np.array([True]))

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
