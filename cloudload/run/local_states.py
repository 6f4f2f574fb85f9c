"""Merge local states: the parts of a state that ranks save if they cannot communicate.

rank 0: cursors 0 _ 2 _ ─┐
rank 1: cursors _ 1 _ 3 ─┴─► merge_state_dicts ─► 0 1 2 3, and the sum of the counts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.rows import tables
from cloudload.run import state_codec
from cloudload.run.lane_texts import LaneTexts
from cloudload.run.position import UNKNOWN, LaneArrays, Position
from cloudload.run.state import (
    COUNTED,
    KEYS,
    OPTIONAL_KEYS,
    PARTIAL,
    State,
    check_keys,
    check_saved,
    encode_lanes,
    read_position,
)
from cloudload.system import Ints


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> State:
    """Merge the local states of all ranks, in any order, into a whole state.

    Raises `StreamChangedError` if a state is damaged or has a different format version, if the
    states are from different runs or steps, or if a rank's state is missing or passed twice.
    """
    if not states:
        raise StreamChangedError("there are no local states to merge. Pass one from every rank")
    for state in states:
        check_keys(state)
    for name in ("rows", *sorted((KEYS | OPTIONAL_KEYS) - {"rows", *PARTIAL})):
        values = [state.get(name) for state in states]
        if any(value != values[0] for value in values):
            advice = (
                "Save the states of all ranks after the same batch"
                if name in (*COUNTED, "tail", "skipped")
                else "Pass the states of one run"
            )
            raise StreamChangedError(
                f"{name} differs among the local states: "
                f"{', '.join(map(state_codec.show, values))}. {advice}"
            )
    parts = [read_position(state).lanes.arrays for state in states]
    merged = _unknown_like(parts[0])
    for state, part in zip(states, parts, strict=True):
        known = part.cursors[..., tables.CURSOR_ORDINAL] != UNKNOWN
        if (merged.cursors[known] != UNKNOWN).any():
            raise StreamChangedError(
                f"part: the local state {state_codec.show(state['part'])} has lanes that another "
                "local state "
                "also has. Pass each rank's local state only once"
            )
        merged.set_lanes(known, part)
    if (merged.cursors < 0).any():
        names = ", ".join(state_codec.show(state["part"]) for state in states)
        raise StreamChangedError(
            f"the local states {names} do not cover all lanes. Pass the local state of every rank"
        )
    counts: Ints = np.asarray(sum(part.counts for part in parts))
    lanes = encode_lanes(replace(merged, counts=counts), LaneTexts())
    whole: State = {**states[0], "part": "", **lanes}
    check_saved(whole)
    return whole


def mask_lanes(position: Position, own: range) -> Position:
    """Return a copy in which all lanes except `own` have unknown cursors and empty residues."""
    arrays = position.lanes.arrays
    masked = _unknown_like(arrays)
    masked.set_lanes(np.s_[:, own], arrays)
    return position.with_lanes(cursors=masked.cursors, residues=masked.residues)


def _unknown_like(arrays: LaneArrays) -> LaneArrays:
    return LaneArrays.blank(
        arrays.cursors.shape[:2],
        len(arrays.counts),
        has_residues=arrays.residues is not None,
        cursor=UNKNOWN,
    )
