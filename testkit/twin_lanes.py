"""Vectorized lanes and their reference, one packer per lane, compared on the same documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from cloudload.rows.packing.fill import Framing, fill_rows
from cloudload.rows.packing.lane_packer import LaneRows
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.residue import unpack_residue
from cloudload.rows.packing.tables import (
    BASE,
    BUFFER,
    COUNT,
    EPOCH,
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    PIECE_DOCUMENT,
    PIECE_ROW,
    PIECE_START,
    PIECE_STOP,
    SAMPLE,
    SIZE,
    STREAM,
    CutRows,
    ReadDocuments,
)
from cloudload.stats import DOCUMENTS, EMPTY, FILTERED
from cloudload.system.arrays import Ints
from testkit.packer_lanes import PackerLanes

LANES = 4
FRAMES = [(None, None), (1, None), (None, 2), (1, 2)]
"""The token IDs (bos, eos) of each stream; None if the stream has no such token."""
FRAMING = Framing.of(FRAMES)
NUM_FRAMING = np.array([sum(each is not None for each in frame) for frame in FRAMES])
NUM_BOS = np.array([frame[0] is not None for frame in FRAMES])


@dataclass(frozen=True)
class Step:
    """How many documents to add to each lane, and then how many rows to cut from each lane."""

    arrivals: Sequence[int]
    wanted: Sequence[int]
    is_interleaved: bool = False
    """Whether the new documents are added one per lane in turn, instead of lane by lane."""


@dataclass(frozen=True)
class Leg:
    """Steps with the same packing options, from one saved state to the next."""

    seq_len: int
    open_rows: int
    steps: Sequence[Step]
    fair_from: int | None = None


Twin = Callable[[Packing, Ints, list[bytes] | None], LaneRows]
"""A function that makes vectorized lanes from a packing, their cursors, and their residues."""


@dataclass
class Corpus:
    """Endless documents whose sizes, in tokens, repeat. Documents of 3 tokens count as filtered."""

    sizes: Sequence[int]
    num_buffers: int = 1
    """The number of buffers among which documents take turns."""

    def read(self, slots: Ints, ordinals: Ints) -> ReadDocuments:
        table = np.zeros((len(slots), NUM_DOCUMENT_COLUMNS), np.int64)
        table[:, FLAT_LANE], table[:, ORDINAL] = slots, ordinals
        table[:, STREAM] = streams = (slots + ordinals) % len(FRAMES)
        table[:, EPOCH], table[:, SAMPLE] = ordinals // 10, 100 * slots + ordinals
        bodies = np.array(self.sizes, np.int64)[(7 * slots + ordinals) % len(self.sizes)]
        is_left_out = bodies == 3
        table[:, SIZE] = np.where(is_left_out, 0, bodies + NUM_FRAMING[streams])
        table[:, COUNT] = np.where(
            is_left_out, FILTERED, np.where(table[:, SIZE] > 0, DOCUMENTS, EMPTY)
        )
        ids = np.repeat(1_000 * (1_000 * slots + ordinals), bodies) + np.arange(bodies.sum())
        firsts = np.repeat(np.cumsum(bodies) - bodies, bodies)
        tokens = (ids - firsts).astype(np.int32)
        buffers = []
        for buffer in range(self.num_buffers):
            own = ordinals % self.num_buffers == buffer
            before = np.cumsum(np.where(own, bodies, 0))[own] - bodies[own]
            table[own, BUFFER], table[own, BASE] = buffer, before - NUM_BOS[streams[own]]
            buffers.append(tokens[np.repeat(own, bodies)].data)
        return ReadDocuments(table, buffers)


@dataclass
class Lanes:
    """The vectorized and reference lanes of a run, and their state after the rows cut so far."""

    packing: Packing
    twin: Twin
    cursors: Ints
    residues: list[bytes]
    both: list[LaneRows] = field(init=False)

    def __post_init__(self) -> None:
        residues = list(self.residues) if self.packing.has_residue else None
        self.both = [
            PackerLanes(self.packing, LANES, self.cursors.copy(), residues),
            self.twin(self.packing, self.cursors.copy(), residues),
        ]
        self.next = self.cursors[:, 0].copy()

    def add(self, corpus: Corpus, slots: Ints, ordinals: Ints) -> None:
        for lanes in self.both:
            lanes.add(corpus.read(slots, ordinals))

    def take(self, corpus: Corpus, step: Step) -> None:
        """Take one step in both kinds of lanes, and check that their results are equal."""
        slots = np.flatnonzero(np.array(step.arrivals) + np.array(step.wanted))
        again, others = (lanes.unread(slots) for lanes in self.both)
        np.testing.assert_array_equal(again, others)
        self.add(corpus, *again)
        numbers = np.array(step.arrivals)[slots]
        new = np.repeat(slots, numbers)
        turns = np.arange(len(new)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        order = np.argsort(turns, kind="stable") if step.is_interleaved else np.arange(len(new))
        self.add(corpus, new[order], (self.next[new] + turns)[order])
        self.next[slots] += numbers
        wanted = np.array(step.wanted)[slots]
        missing, other = (lanes.missing(slots, wanted) for lanes in self.both)
        np.testing.assert_array_equal(missing, other)
        expected, found = (lanes.cut(slots, wanted) for lanes in self.both)
        self.compare(expected, found)
        self.advance(slots, found)

    def compare(self, expected: CutRows, found: CutRows) -> None:
        for name in ("num_rows", "cursors", "counted"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(found, name), name)
            assert getattr(found, name).dtype == np.int64
        assert (expected.residues is None) == (found.residues is None)
        assert list(expected.residues or ()) == list(found.residues or ())
        # without residues, the two tables may list a piece's document at different indices
        compared = slice(None) if self.packing.has_residue else [PIECE_ROW, PIECE_START, PIECE_STOP]
        assert expected.pieces.dtype == found.pieces.dtype == np.int64
        np.testing.assert_array_equal(expected.pieces[:, compared], found.pieces[:, compared])
        columns = [FLAT_LANE, ORDINAL, STREAM, EPOCH, SAMPLE, SIZE, COUNT]
        documents, others = (
            cut.documents.table[cut.pieces[:, PIECE_DOCUMENT]][:, columns]
            for cut in (expected, found)
        )
        np.testing.assert_array_equal(documents, others)
        np.testing.assert_array_equal(self.tokens(expected), self.tokens(found))

    def tokens(self, cut: CutRows) -> Ints:
        out = np.full((len(cut.cursors), self.packing.seq_len), -1, np.int32)
        fill_rows(out, cut, FRAMING)
        return out.astype(np.int64)

    def advance(self, slots: Ints, cut: CutRows) -> None:
        for slot, stop, number in zip(
            slots.tolist(), np.cumsum(cut.num_rows).tolist(), cut.num_rows.tolist(), strict=True
        ):
            if number:
                self.cursors[slot] = cut.cursors[stop - 1]
                if cut.residues is not None:
                    self.residues[slot] = cut.residues[stop - 1]


def run(name: str, twin: Twin, corpus: Corpus, legs: Sequence[Leg], overflow: str = "cut") -> int:
    """Run the legs, each from the state at the end of the previous leg. Returns the number of rows
    requested."""
    cursors, residues = np.zeros((LANES, 2), np.int64), [b""] * LANES
    rows = 0
    for number, leg in enumerate(legs):
        if number and leg.seq_len != legs[number - 1].seq_len:
            residues = [
                unpack_residue(residue, int(at))
                for residue, at in zip(residues, cursors[:, 0], strict=True)
            ]
        packing = Packing(name, leg.seq_len, leg.open_rows, overflow, leg.fair_from)
        lanes = Lanes(packing, twin, cursors, residues)
        for step in leg.steps:
            lanes.take(corpus, step)
            rows += sum(step.wanted)
        cursors, residues = lanes.cursors, lanes.residues
    return rows


def numbers_of_lanes(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=LANES, max_size=LANES)


steps = st.builds(Step, numbers_of_lanes(8), numbers_of_lanes(4), st.booleans())
legs = st.builds(
    Leg,
    st.integers(5, 40),
    st.integers(1, 5),
    st.lists(steps, min_size=1, max_size=6),
    st.sampled_from([None, 0, 0, 7]),
)
same_or_other = st.lists(legs, min_size=1, max_size=3) | st.builds(
    lambda leg, more: [leg, *(replace(leg, steps=each) for each in more)],
    legs,
    st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=2),
)
corpora = st.builds(
    Corpus,
    st.lists(st.integers(0, 12) | st.integers(0, 130), min_size=1, max_size=40),
    st.integers(1, 3),
)


def long_run(seed: int) -> tuple[Corpus, list[Leg]]:
    """A corpus and 8 legs of 15 steps. Legs 0, 3, and 6 have a random `seq_len`, the others 24."""
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
            fair_from=0 if seed % 2 else None,
        )
        for number in range(8)
    ]
    return Corpus(sizes.tolist(), 1 + seed % 2), legs
