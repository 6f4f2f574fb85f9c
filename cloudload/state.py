"""The state: where the row stream stands, small, flat, and the same whatever the world.

    version, cloudload      of the format, and of the library that wrote it
    rows                    rows of the run that have been handed out
    table_rows              rows up to which the cursors count; a resume reads again, and drops, the rows from there
    cursors                 base64 of [components, num_lanes, 2]: ordinal and offset of each lane's next token; little-endian
                            int32, or int64 where one of them needs it
    residues                base64 of what each lane has read and not emitted (`pack.decode_residue`), compressed; "" for none
    tail                    "" until the lanes of a finite run have ended at table_rows; then `tail.Stages`, as "512:100,1024:3"
    part                    "" for a whole state, else the world indices it covers, such as "1/4"
    counts, skipped         of the statistics: by stream; and the rows passed over, as "100:164,…"
    batches, global_batch   global batches handed out, and the rows of the last: by which a trace counts steps
    mixture                 the streams' names and weights, and from which rows on
    data, bos_eos, …        fingerprints and config that the rows follow from; those of streams are joined by commas
    sources                 where the data and the tokenizer were, for `cloudload trace`; never compared
    tokenizer_backend       what encoded, and its version; never compared, for all give the same ids

A state is plain JSON types under a fixed set of keys, so it travels alike through `json`, through `torch.load` with
`weights_only=True`, and through DCP. Nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import cloudload
from cloudload.errors import StreamChangedError
from cloudload.lanes import Ints, Layout
from cloudload.mixture import Mixture
from cloudload.pack import split_residues
from cloudload.position import LaneArrays, LaneTable, Position, Residues
from cloudload.recipe import Recipe
from cloudload.stats import COUNTS

VERSION = 3
State = dict[str, Any]

_MISSING = -1
_HELD_FIELDS = (
    *("packing", "open_rows", "overflow", "shuffle", "shuffle_algo", "seed", "epochs", "text_key", "min_tokens", "transform"),
    *("num_lanes", "num_canonical_nodes", "shuffle_block_size", "choose", "shards", "data", "tokenizer", "bos_eos"),
)
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_KEYS = frozenset(
    {"version", "cloudload", "seq_len", "cursors", "residues", "tail", "part", "counts", "skipped", "mixture", "sources"}
    | {"tokenizer_backend"}
    | {*_COUNTED, *_HELD_FIELDS}
)


def build_state(recipe: Recipe, position: Position, tokenizer_backend: str, part: str = "") -> State:
    """The state of a position. `tokenizer_backend` is a `Choice`'s versions."""
    return {
        "version": VERSION,
        "cloudload": cloudload.__version__,
        "rows": position.rows,
        "table_rows": position.table_rows,
        "batches": position.batches,
        "global_batch": position.global_batch,
        "seq_len": recipe.config.seq_len,
        **recipe.fields,
        "mixture": recipe.mixture.to_json(),
        "sources": recipe.sources,
        "tokenizer_backend": tokenizer_backend,
        "part": part,
        "tail": "" if position.tail is None else _join_pairs(position.tail),
        "skipped": _join_pairs(position.skipped),
        "counts": json.dumps(position.counts.tolist(), separators=(",", ":")),
        "cursors": _encode_cursors(position.cursors),
        "residues": _encode_residues(position.residues),
    }


# ---------------------------------------------------------------- loading


@dataclass(frozen=True)
class Saved:
    """A whole state, as far as it can be read without a config."""

    position: Position
    layout: Layout
    mixture: Mixture
    seq_len: int
    fields: Mapping[str, Any]


def read_state(state: Mapping[str, Any]) -> Saved:
    """What a state says. Raises `StreamChangedError` for what is damaged, or a part."""
    _check_keys(state)
    if state["part"]:
        raise StreamChangedError(
            f"this is the local state of rank {state['part']}. Join those of all ranks with merge_state_dicts, and load that"
        )
    position = _read_position(state)
    if (position.cursors < 0).any():
        lane = int(np.flatnonzero((position.cursors < 0).any(axis=(0, 2)))[0])
        raise StreamChangedError(f"cursors: lane {lane} has none. The state is damaged, or lacks a rank's part")
    layout = Layout(
        state["num_lanes"],
        _read_numbers("num_canonical_nodes", state["num_canonical_nodes"]),
        _read_numbers("shuffle_block_size", state["shuffle_block_size"]),
    )
    fields = {name: state[name] for name in _HELD_FIELDS}
    return Saved(position, layout, Mixture.from_json(state["mixture"]), state["seq_len"], fields)


# ---------------------------------------------------------------- parts


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> State:
    """The whole state of the local states of all ranks. Raises `StreamChangedError` where they do not belong together."""
    if not states:
        raise StreamChangedError("no local states to merge: give those of all ranks")
    for state in states:
        _check_keys(state)
    first = dict(states[0])
    for name in ("rows", *sorted(_KEYS - {"rows", "cursors", "residues", "counts", "part", "tokenizer_backend"})):
        values = [state[name] for state in states]
        if any(value != values[0] for value in values):
            raise StreamChangedError(f"{name} differs among the local states: {values}. Save all ranks after the same batch")
    positions = [_read_position(state) for state in states]
    cursors = np.full_like(positions[0].cursors, _MISSING)
    residues = None if positions[0].residues is None else np.full(positions[0].residues.shape, b"", object)
    for position in positions:
        known = position.cursors[..., 0] != _MISSING
        cursors[known] = position.cursors[known]
        if residues is not None and position.residues is not None:
            residues[known] = position.residues[known]
    if (cursors < 0).any():
        parts = ", ".join(str(state["part"]) for state in states)
        raise StreamChangedError(f"the local states {parts} leave lanes without a cursor. Give those of all ranks")
    counts = sum(position.counts for position in positions)
    return {
        **first,
        "part": "",
        "counts": json.dumps(np.asarray(counts).tolist(), separators=(",", ":")),
        "cursors": _encode_cursors(cursors),
        "residues": _encode_residues(residues),
    }


def mask_lanes(position: Position, own: range) -> Position:
    """The position with what it says of other lanes marked unknown."""
    cursors = np.full_like(position.cursors, _MISSING)
    cursors[:, own] = position.cursors[:, own]
    residues = None
    if position.residues is not None:
        residues = np.full(position.residues.shape, b"", object)
        residues[:, own] = position.residues[:, own]
    return position.with_lanes(cursors=cursors, residues=residues)


# ---------------------------------------------------------------- reading


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
    for name, least in {**dict.fromkeys(_COUNTED, 0), "num_lanes": 1, "seq_len": 1}.items():
        if not isinstance(state[name], int) or isinstance(state[name], bool) or state[name] < least:
            raise StreamChangedError(f"{name}: {state[name]!r} is not a count. The state is damaged")


def _read_position(state: Mapping[str, Any]) -> Position:
    if state["table_rows"] > state["rows"]:
        raise StreamChangedError(f"table_rows: {state['table_rows']} is past rows {state['rows']}. The state is damaged")
    data, num_lanes = _decode("cursors", state["cursors"]), state["num_lanes"]
    num_components = len(_read_numbers("num_canonical_nodes", state["num_canonical_nodes"]))
    expected = num_components * num_lanes * 8
    if len(data) not in (expected, 2 * expected):
        raise StreamChangedError(f"cursors: {len(data)} bytes where {num_lanes} lanes need {expected}. The state is damaged")
    numbers = np.frombuffer(data, "<i4" if len(data) == expected else "<i8")
    cursors = numbers.reshape(num_components, num_lanes, 2).astype(np.int64)
    return Position(
        rows=state["rows"],
        table_rows=state["table_rows"],
        lanes=LaneTable(LaneArrays(cursors, _decode_residues(state, (num_components, num_lanes)), _read_counts(state["counts"]))),
        tail=_read_pairs("tail", state["tail"]) or None,
        skipped=_read_pairs("skipped", state["skipped"]),
        batches=state["batches"],
        global_batch=state["global_batch"],
    )


def _read_counts(text: Any) -> Ints:
    try:
        counts = np.array(json.loads(text), np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise StreamChangedError(f"counts: {error}. The state is damaged") from error
    if counts.ndim != 2 or counts.shape[1] != len(COUNTS):
        raise StreamChangedError(f"counts: {counts.shape} numbers where each stream has {len(COUNTS)}. The state is damaged")
    return counts


def _read_numbers(name: str, text: Any) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except (AttributeError, ValueError) as error:
        raise StreamChangedError(f"{name}: {text!r} is not a list of numbers. The state is damaged") from error


def _join_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{one}:{other}" for one, other in pairs)


def _read_pairs(name: str, text: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [tuple(map(int, pair.split(":"))) for pair in text.split(",") if pair]
        return tuple((one, other) for one, other in pairs)
    except (AttributeError, ValueError) as error:
        raise StreamChangedError(f"{name}: {text!r} is not a list of pairs of numbers. The state is damaged") from error


def _decode(name: str, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise StreamChangedError(f"{name}: not base64 ({error}). The state is damaged") from error


def _encode_cursors(cursors: Ints) -> str:
    width = "<i4" if cursors.max(initial=0) < 1 << 31 else "<i8"
    return base64.b64encode(cursors.astype(width).data).decode("ascii")


def _encode_residues(residues: Residues | None) -> str:
    """Base64 of a zlib stream of little-endian int32: the sizes in bytes of all lanes of all components, and then their residues.

    The numbers' low bytes come first, then their next, …: so they compress to three quarters, and faster.
    """
    if residues is None:
        return ""
    parts = residues.ravel().tolist()
    numbers = np.array([len(part) for part in parts], "<i4").tobytes() + b"".join(parts)
    planes = np.frombuffer(numbers, np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes, 1)).decode("ascii")


def _decode_residues(state: Mapping[str, Any], shape: tuple[int, int]) -> Residues | None:
    if state["packing"] != "best_fit":
        return None
    try:
        planes = zlib.decompress(_decode("residues", state["residues"]))
        data = np.frombuffer(planes, np.uint8).reshape(4, -1).T.tobytes()
        sizes = np.frombuffer(data, "<i4", shape[0] * shape[1])
        if (sizes < 0).any() or sizes.nbytes + int(sizes.sum()) != len(data):
            raise ValueError("sizes that do not add up")
    except (zlib.error, ValueError) as error:
        raise StreamChangedError(f"residues: {error}. The state is damaged") from error
    residues = np.empty(shape, object)
    residues.reshape(-1)[:] = split_residues(data[sizes.nbytes :], sizes.tolist())
    return residues
