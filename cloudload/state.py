"""The state: where the row stream stands, small, flat, and the same whatever the world.

    version, cloudload      of the format, and of the library that wrote it
    rows                    rows of the run that have been handed out
    table_rows              rows up to which the cursors count; a resume reads again, and drops, the rows from there
    cursors                 base64 of little-endian int64 [num_lanes, 2]: ordinal and offset of each lane's next unread token
    part                    "" for a whole state, else the world indices it covers, such as "1/4"
    data, tokenizer         fingerprints
    seq_len, num_lanes, …   the config that the rows follow from

A state is plain JSON types under a fixed set of keys, so it travels alike through `json`, through `torch.load` with
`weights_only=True`, and through DCP. Nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cloudload
from cloudload.config import RowsConfig
from cloudload.errors import StreamChangedError
from cloudload.lanes import Ints, Lanes

VERSION = 1
State = dict[str, Any]

_MISSING = -1
# seq_len is not among them: cursors count tokens, so a run goes on with rows of another length
_HELD_FIELDS = (
    "packing",
    "shuffle",
    "shuffle_algo",
    "shuffle_block_size",
    "num_canonical_nodes",
    "seed",
    "num_lanes",
    "epochs",
    "text_key",
)
_FINGERPRINTS = {
    "data": "data (fingerprint of the shards' sizes, hashes and columns)",
    "tokenizer": "tokenizer (fingerprint, with bos and eos)",
}
_ADOPTED_FIELDS = ("num_lanes", "num_canonical_nodes", "shuffle_block_size")
_KEYS = frozenset(
    {"version", "cloudload", "rows", "table_rows", "cursors", "part", "data", "tokenizer", "seq_len", *_HELD_FIELDS}
)


@dataclass(frozen=True)
class Position:
    """Where a run stands: `rows` handed out, and each lane's cursor (int64 [lanes, 2]) as of `table_rows`; -1 where unknown."""

    rows: int
    table_rows: int
    cursors: Ints

    @staticmethod
    def start(num_lanes: int) -> Position:
        """Before the first row."""
        return Position(0, 0, np.zeros((num_lanes, 2), np.int64))


@dataclass(frozen=True)
class Identity:
    """What a state must agree with: the resolved config, and fingerprints of data and tokenizer."""

    config: RowsConfig
    data: str
    tokenizer: str

    def fields(self) -> dict[str, Any]:
        """The held fields by name."""
        held = {name: getattr(self.config, name) for name in _HELD_FIELDS}
        return {**held, "data": self.data, "tokenizer": self.tokenizer}


def build_state(identity: Identity, position: Position, part: str = "") -> State:
    """The state of a position."""
    return {
        "version": VERSION,
        "cloudload": cloudload.__version__,
        "rows": position.rows,
        "table_rows": position.table_rows,
        "seq_len": identity.config.seq_len,
        **identity.fields(),
        "part": part,
        "cursors": base64.b64encode(position.cursors.astype("<i8").tobytes()).decode("ascii"),
    }


def adopt_defaults(config: RowsConfig, state: Mapping[str, Any]) -> RowsConfig:
    """`config` with what the user left open taken from the state: a default may differ between releases, a run may not."""
    _check_keys(state)
    open_fields = {name: state[name] for name in _ADOPTED_FIELDS if getattr(config, name) is None}
    try:
        return replace(config, **open_fields)
    except ValueError as error:
        raise StreamChangedError(f"{error}. The state is damaged, or does not fit what was asked for") from error


def read_state(state: Mapping[str, Any], identity: Identity) -> Position:
    """The position of a whole state. Raises `StreamChangedError` that names every field at fault."""
    _check_keys(state)
    if state["part"]:
        raise StreamChangedError(
            f"this is the local state of rank {state['part']}. Join those of all ranks with merge_state_dicts, and load that"
        )
    differing = [
        f"  {_FINGERPRINTS.get(name, name)}: saved {state[name]!r}, found {found!r}"
        for name, found in identity.fields().items()
        if state[name] != found
    ]
    if differing:
        raise StreamChangedError(
            "the state is of another stream of rows; these differ:\n"
            + "\n".join(differing)
            + "\nGo on with what was saved, or start a new run without this state"
        )
    position = _read_position(state)
    if state["seq_len"] != identity.config.seq_len and position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {state['seq_len']!r}, found {identity.config.seq_len!r}, and the state lies between two exchanges "
            f"(rows {position.table_rows:,} to {position.rows:,}). Save it with exchange_every=1 before changing seq_len"
        )
    return position


def check_cursors(position: Position, lanes: Lanes) -> None:
    """Raises `StreamChangedError` where a cursor is missing or points past the data."""
    if (position.cursors < 0).any():
        lane = int(np.flatnonzero((position.cursors < 0).any(axis=1))[0])
        raise StreamChangedError(f"cursors: lane {lane} has none. The state is damaged, or lacks a rank's part")
    if lanes.epochs is None:
        return
    for lane, (ordinal, offset) in enumerate(position.cursors.tolist()):
        end = lanes.end(lane)
        if end is not None and (ordinal > end or (ordinal == end and offset)):
            raise StreamChangedError(f"cursors: lane {lane} stands at document {ordinal} of {end}. The state is damaged")


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> State:
    """The whole state of the local states of all ranks. Raises `StreamChangedError` where they do not belong together."""
    if not states:
        raise StreamChangedError("no local states to merge: give those of all ranks")
    for state in states:
        _check_keys(state)
    first = dict(states[0])
    for name in sorted(_KEYS - {"cursors", "part"}):
        values = [state[name] for state in states]
        if any(value != values[0] for value in values):
            raise StreamChangedError(f"{name} differs among the local states: {values}. Save all ranks after the same batch")
    table = np.full((first["num_lanes"], 2), _MISSING, np.int64)
    for state in states:
        cursors = _read_position(state).cursors
        known = cursors[:, 0] != _MISSING
        table[known] = cursors[known]
    if (table < 0).any():
        parts = ", ".join(str(state["part"]) for state in states)
        raise StreamChangedError(f"the local states {parts} leave lanes without a cursor. Give those of all ranks")
    return {**first, "part": "", "cursors": base64.b64encode(table.astype("<i8").tobytes()).decode("ascii")}


def mask_lanes(position: Position, own: range) -> Position:
    """The position with the cursors of other lanes marked unknown."""
    cursors = np.full_like(position.cursors, _MISSING)
    cursors[own] = position.cursors[own]
    return replace(position, cursors=cursors)


def _check_keys(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or "version" not in state:
        raise StreamChangedError("this is not a cloudload state: it has no version. Load what state_dict() gave")
    if state["version"] != VERSION:
        raise StreamChangedError(
            f"version: the state has {state['version']!r}, this cloudload reads {VERSION}. "
            f"Use the cloudload that wrote it ({state.get('cloudload', 'unknown')})"
        )
    missing, unknown = sorted(_KEYS - state.keys()), sorted(state.keys() - _KEYS)
    if missing or unknown:
        raise StreamChangedError(f"the state is damaged: missing fields {missing}, unknown fields {unknown}")
    for name, least in {"rows": 0, "table_rows": 0, "num_lanes": 1, "seq_len": 1}.items():
        if not isinstance(state[name], int) or isinstance(state[name], bool) or state[name] < least:
            raise StreamChangedError(f"{name}: {state[name]!r} is not a count. The state is damaged")


def _read_position(state: Mapping[str, Any]) -> Position:
    if state["table_rows"] > state["rows"]:
        raise StreamChangedError(f"table_rows: {state['table_rows']} is past rows {state['rows']}. The state is damaged")
    try:
        data = base64.b64decode(state["cursors"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise StreamChangedError(f"cursors: not base64 ({error}). The state is damaged") from error
    if len(data) != state["num_lanes"] * 16:
        raise StreamChangedError(
            f"cursors: {len(data)} bytes where {state['num_lanes']} lanes need {state['num_lanes'] * 16}. The state is damaged"
        )
    return Position(state["rows"], state["table_rows"], np.frombuffer(data, "<i8").reshape(-1, 2).astype(np.int64))
