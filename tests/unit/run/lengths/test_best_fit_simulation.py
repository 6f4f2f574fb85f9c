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

from cloudload.order.lanes import Lanes
from cloudload.order.spec import OrderConfig
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

NUM_LANES = 3


def make_sizes(lengths: list[int], folder: Path, epochs: int | None) -> LaneSizes:
    """Return the sizes of the documents in `NUM_LANES` unshuffled lanes, from lengths in tokens."""
    counted = np.array(lengths, np.int64)
    component = Component(
        streams=range(1),
        first_sample=0,
        shard_sizes=np.array([len(lengths)]),
        raw_bytes=0,
        sampling=None,
        order=OrderConfig(False, "py1e", 1 << 18, 1, 0),
        lanes=Lanes(NUM_LANES, len(lengths), epochs),
    )
    orders = component.orders(folder)
    return LaneSizes(
        component, orders, counted.__getitem__, np.zeros_like, np.zeros(1, np.int64), 0
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
        patch.setattr(best_fit_simulation, "_DOCUMENTS_AT_ONCE", at_once)
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
    walker = BestFitWalker(LaneTables(tmp_path, sizes, packing, ""), sizes, packing)
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
        walker = BestFitWalker(LaneTables(tmp_path, sizes, packing, ""), sizes, packing)
        finder = BestFitRows(walker, cursors, residues)
        return finder.find(np.array([1]), np.array([row])).tolist()

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
