"""Text joined from reused and new chunks equals a fresh encoding, whichever lanes have moved."""

from __future__ import annotations

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.run.lane_texts import LaneTexts
from cloudload.run.saved import decode_residues, read_cursors

LANES, BIG = 200, (0, 1, 1 << 15, 1 << 16, 1 << 31)
MOVES = st.lists(
    st.tuples(st.integers(0, LANES - 1), st.sampled_from(BIG), st.sampled_from(BIG)), max_size=6
)


@given(batches=st.lists(MOVES, max_size=5))
def test_chunks_that_are_encoded_again_join_to_the_text_of_all_lanes(
    batches: list[list[tuple[int, int, int]]],
) -> None:
    texts = LaneTexts()
    cursors, residues = np.zeros((1, LANES, 3), np.int64), np.full((1, LANES), b"", object)
    cursors[..., 0] = 1 << 20
    for moves in batches:
        cursors, residues = cursors.copy(), residues.copy()
        for lane, offset, size in moves:
            cursors[0, lane, 1:] = offset, size
            residues[0, lane] = np.arange(lane % 7, dtype="<i4").tobytes()
        found = texts.encode(cursors, residues)
        assert found == LaneTexts().encode(cursors, residues)
        base64.b64decode(found["cursors"], validate=True)
        state = {**found, "num_lanes": LANES, "num_canonical_nodes": "1", "packing": "best_fit"}
        np.testing.assert_array_equal(read_cursors(state), cursors)
        read = decode_residues(state, cursors)
        assert read is not None
        assert read.tolist() == residues.tolist()
