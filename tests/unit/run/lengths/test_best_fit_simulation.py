"""Lanes played from lengths have the same rows, cursors, and residues as the reference packer."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.order.epoch_order import OrderConfig
from cloudload.order.lanes import Lanes
from cloudload.rows.packing.fill import Framing
from cloudload.rows.packing.packers import PackedRow, Packing
from cloudload.run.components import Component
from cloudload.run.lengths import best_fit_simulation
from cloudload.run.lengths.best_fit_checkpoints import DOCUMENTS_OF_MARK, LaneMarks, LaneState
from cloudload.run.lengths.best_fit_simulation import PlayedLanes
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.row_finder import BestFitRows, decode_spans
from cloudload.run.lengths.sizes import DocumentSizes, LaneSizes
from cloudload.system.arrays import Ints
from testkit.examples import EXAMPLES
from testkit.tiny_runs import TinyRun, name_documents

NUM_LANES = 3


def make_sizes(lengths: list[int], folder: Path, epochs: int | None) -> LaneSizes:
    """Return the sizes of the documents in `NUM_LANES` unshuffled lanes, from lengths in tokens."""
    counted = np.array(lengths, np.int64)
    component = Component(
        streams=range(1),
        first_sample=0,
        shard_sizes=np.array([len(lengths)]),
        raw_bytes=0,
        num_selected=len(lengths),
        sampling=None,
        order=OrderConfig(False, "py1e", 1 << 18, 1, 0),
        lanes=Lanes(NUM_LANES, len(lengths), epochs),
    )
    orders = component.orders(folder)
    return LaneSizes(
        component, orders, counted.__getitem__, np.zeros_like, Framing.of([(None, None)]), 0
    )


def pack(sizes: LaneSizes, packing: Packing, lane: int, state: LaneState) -> list[PackedRow]:
    """Return the rows that the reference packer makes from `state` to the end of six epochs."""
    packer = packing.packer(state[:2], state.residue)
    ordinals = np.arange(state.ordinal, 6 * sizes.component.lanes.stride // NUM_LANES)
    found = sizes.measure(np.full_like(ordinals, lane), ordinals)
    for ordinal, size in zip(ordinals.tolist(), found.sizes.tolist(), strict=True):
        packer.add(ordinal, size)
    return list(packer.rows)


@given(
    lengths=st.lists(st.integers(0, 25), min_size=6, max_size=40).filter(
        lambda lengths: all(any(lengths[lane::NUM_LANES]) for lane in range(NUM_LANES))
    ),
    packing=st.builds(
        Packing,
        st.just("best_fit"),
        st.sampled_from([4, 9, 16]),
        st.integers(1, 5),
        st.just("cut"),
        st.sampled_from([None, 0, 4]),
    ),
    saved=st.integers(0, 12),
    asked=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    spacing=st.sampled_from([2, 7, 2_048]),
    at_once=st.sampled_from([30, 1 << 17]),
)
@settings(max_examples=EXAMPLES)
def test_any_row_from_any_state_is_that_of_the_packer(  # noqa: PLR0917
    lengths: list[int],
    packing: Packing,
    saved: int,
    asked: list[int],
    spacing: int,
    at_once: int,
) -> None:
    """Request rows in any order from two objects that share mark files."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit_simulation, "DOCUMENTS_OF_MARK", spacing)
        patch.setattr(best_fit_simulation, "DOCUMENTS_AT_ONCE", at_once)
        folder = Path(name)
        sizes = make_sizes(lengths, folder, None)
        ends = LaneTables(folder, sizes, packing, "").ends
        before = [pack(sizes, packing, lane, LaneState(0, 0, b"")) for lane in range(NUM_LANES)]
        states = [
            LaneState(0, 0, b"")
            if not saved or saved > len(rows)
            else LaneState(*rows[saved - 1].cursor, rows[saved - 1].residue)
            for rows in before
        ]
        expected = [pack(sizes, packing, lane, state) for lane, state in enumerate(states)]
        fresh = [PlayedLanes(sizes, packing, LaneMarks(folder / "marks"), ends) for _ in range(2)]
        for turn, row in zip(itertools.cycle((0, 1, 0)), asked, strict=False):
            lanes = np.arange(NUM_LANES)
            with fresh[turn].start(lanes, states) as playing:
                assert not playing.play(lanes, np.full(NUM_LANES, row)).any()
                for lane, packed in enumerate(expected):
                    if 0 < row <= len(packed):
                        cursor, residue = packed[row - 1].cursor, packed[row - 1].residue
                        assert playing.state(lane) == (*cursor, residue)
                taken = playing.take_rows(lanes, np.full(NUM_LANES, 2))
            for packed, rows in zip(expected, taken, strict=True):
                found = [decode_spans(each).tolist() for each in rows]
                pieces = [[list(piece[:3]) for piece in each.pieces] for each in packed]
                assert found[: len(pieces[row : row + 2])] == pieces[row : row + 2]


def test_a_lane_ends_where_the_packer_has_no_more_rows(tmp_path: Path) -> None:
    sizes = make_sizes([5, 3, 0, 4, 9, 0, 2, 2, 0], tmp_path, 2)
    packing = Packing("best_fit", 8, 2, "cut")
    walker = BestFitWalker(LaneTables(tmp_path, sizes, packing, ""))
    cursors, residues = np.zeros((NUM_LANES, 3), np.int64), np.full(NUM_LANES, b"", object)
    rows = walker.count_rows(cursors, residues)
    reference = []
    for lane in range(NUM_LANES):
        packer = packing.packer()
        for ordinal in range(6):
            packer.add(ordinal, int(sizes.measure(np.array(lane), np.array(ordinal)).sizes))
        reference.append(len(packer.rows))
    assert rows.tolist() == reference
    assert reference[2] == 0


def test_a_far_row_is_found_by_measuring_few_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = np.random.default_rng(0).integers(0, 900, 90_000).tolist()
    sizes = make_sizes(lengths, tmp_path, None)
    packing = Packing("best_fit", 2_048, 16, "cut")
    cursors, residues = np.zeros((NUM_LANES, 3), np.int64), np.full(NUM_LANES, b"", object)

    def find(row: int) -> Any:
        walker = BestFitWalker(LaneTables(tmp_path, sizes, packing, ""))
        finder = BestFitRows(walker, cursors, residues)
        return name_documents(finder.find(np.array([1]), np.array([row]))).tolist()

    found = find(6_000)  # this call plays the lane from its start, and saves marks
    measured = []
    original = LaneSizes.measure

    def count(self: LaneSizes, lanes: Ints, ordinals: Ints) -> DocumentSizes:
        measured.append(ordinals.size)
        return original(self, lanes, ordinals)

    monkeypatch.setattr(LaneSizes, "measure", count)
    assert find(6_000) == found
    assert found[0][2] > 20_000
    assert sum(measured) < 3 * DOCUMENTS_OF_MARK


def played(*lengths: int, epochs: int | None = None) -> PlayedLanes:
    """Lanes of rows of 5 tokens and up to 2 open rows, without files."""
    run = TinyRun(list(lengths), packing="best_fit", open_rows=2, epochs=epochs)
    [sizes] = run.lengths.sizes
    ends = LaneTables(Path("/dev/null"), sizes, run.recipe.packing, "").ends
    return PlayedLanes(sizes, run.recipe.packing, LaneMarks(None), ends)


BEGIN = LaneState(0, 0, b"")
ONE, BOTH = np.array([0]), np.array([0, 1])


def test_lanes_that_are_played_further_are_known() -> None:
    lanes = played(5, 5)
    with lanes.start(BOTH, [BEGIN, BEGIN]) as playing:
        assert playing.unknown == [0, 1]
        playing.play(BOTH, np.array([3, 0]))
        assert [playing.row(lane) for lane in (0, 1)] == [3, 0]
        assert playing.state(0) == (3, 0, b"")
        assert playing.state(1) == BEGIN
    with lanes.start(BOTH, [BEGIN, BEGIN]) as playing:
        assert playing.unknown == []
        assert playing.row(0) == 3


def test_rows_are_counted_from_the_state_that_a_caller_starts_with() -> None:
    lanes = played(5, 5)
    with lanes.start(ONE, [BEGIN]) as playing:
        playing.play(ONE, np.array([3]))
    with lanes.start(ONE, [LaneState(3, 0, b"")]) as playing:
        assert playing.unknown == []
        assert playing.row(0) == 0
        playing.play(ONE, np.array([2]))
        assert playing.state(0) == (5, 0, b"")
    with lanes.start(ONE, [LaneState(4, 0, b"")]) as playing:
        assert playing.unknown == [0]


def test_after_an_exception_lanes_are_played_from_their_states_again() -> None:
    lanes = played(5, 5)

    def play_and_fail() -> None:
        with lanes.start(ONE, [BEGIN]) as playing:
            playing.play(ONE, np.array([3]))
            raise KeyError

    with pytest.raises(KeyError):
        play_and_fail()
    with lanes.start(ONE, [BEGIN]) as playing:
        assert playing.unknown == [0]
        assert playing.row(0) == 0


def test_two_callers_at_once_have_players_of_their_own() -> None:
    lanes = played(5, 5)
    with lanes.start(ONE, [BEGIN]) as first:
        first.play(ONE, np.array([3]))
        with lanes.start(ONE, [BEGIN]) as second:
            second.play(ONE, np.array([1]))
            assert second.row(0) == 1
        assert first.row(0) == 3


def test_a_finite_lane_is_dry_at_its_end_and_keeps_its_last_state() -> None:
    with played(5, 3, 5, 4, epochs=1).start(BOTH, [BEGIN, BEGIN]) as playing:
        assert playing.play(BOTH, np.array([2, 0])).tolist() == [False, False]
        assert playing.play(BOTH, np.array([3, 2])).tolist() == [True, True]
        assert [playing.row(lane) for lane in (0, 1)] == [2, 1]


def test_an_endless_lane_without_tokens_is_dry() -> None:
    with played(5, 0).start(BOTH, [BEGIN, BEGIN]) as playing:
        assert playing.play(BOTH, np.array([1, 1]))[1]


def test_a_lane_can_be_played_back_to_an_earlier_row() -> None:
    with played(2, 5, 3, 5).start(ONE, [BEGIN]) as playing:
        playing.play(ONE, np.array([6]))
        there = playing.state(0)
        playing.play(ONE, np.array([2]))
        assert playing.row(0) == 2
        playing.play(ONE, np.array([6]))
        assert playing.state(0) == there


def test_rows_are_taken_from_where_each_lane_is() -> None:
    with played(5, 2, 5, 3).start(BOTH, [BEGIN, BEGIN]) as playing:
        playing.play(BOTH, np.array([1, 0]))
        first, second = playing.take_rows(BOTH, np.array([2, 1]))
        assert [decode_spans(row).tolist() for row in first] == [[[1, 0, 5]], [[2, 0, 5]]]
        assert [decode_spans(row).tolist() for row in second] == [[[0, 0, 2], [1, 0, 3]]]
        assert [playing.row(lane) for lane in (0, 1)] == [3, 1]


def test_marks_lead_to_the_rows_after_every_1024_documents() -> None:
    lanes = played(*[5] * 1_024)
    with lanes.start(ONE, [BEGIN]) as playing:
        playing.play(ONE, np.array([2_100]))
    leap = lanes.marks.after(0, BEGIN)
    assert leap == (1_024, (1_024, 0, b""))
    again = lanes.marks.after(0, leap.state)
    assert again == (1_024, (2_048, 0, b""))
    assert lanes.marks.after(0, again.state) is None


def test_a_mark_leads_from_the_last_one_wherever_rows_are_counted_from() -> None:
    lanes = played(*[5] * 1_024)
    for state, rows in ((BEGIN, 3), (LaneState(3, 0, b""), 1_100)):
        with lanes.start(ONE, [state]) as playing:
            playing.play(ONE, np.array([rows]))
    assert lanes.marks.after(0, BEGIN) == (1_024, (1_024, 0, b""))


def test_a_document_is_approached_from_the_mark_before_it() -> None:
    lanes = played(*[5] * 1_024)
    with lanes.start(ONE, [BEGIN]) as playing:
        playing.play(ONE, np.array([2_100]))
        for ordinal, row in ((2_049, 2_048), (2_048, 1_024), (1_024, 0), (7, 0)):
            playing.approach_document(0, ordinal)
            assert playing.row(0) == row


def test_an_invalid_residue_is_refused_with_its_lane() -> None:
    with (
        pytest.raises(StreamChangedError, match="residues: lane 0 has a residue of 3 bytes"),
        played(5, 5).start(ONE, [LaneState(4, 0, b"abc")]) as playing,
    ):
        playing.play(ONE, np.array([1]))
