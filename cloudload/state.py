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
import itertools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import cloudload
from cloudload.arrays import Ints
from cloudload.errors import StreamChangedError
from cloudload.order.lanes import Layout
from cloudload.order.mixture import Mixture
from cloudload.packing.residue import split_residues
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
# far more than any run has, and so little that sums and products of them fit 64 bits
_MOST = {
    **dict.fromkeys(("rows", "table_rows", "batches"), 1 << 48),
    **dict.fromkeys(("global_batch", "seq_len"), 1 << 31),
    "num_lanes": 1 << 22,
}
_MOST_COUNTED = 1 << 62
# of spans and of cursors, see `pack.encode_spans` and `lane_rows`
_MOST_ORDINAL = {"best_fit": 1 << 30}
_MOST_ORDINAL_ELSE, _MOST_OFFSET = 1 << 38, 1 << 40
_MOST_RESIDUE_BYTES, _BYTES_PER_SPAN = 1 << 30, 12
_SHOWN_CHARACTERS = 200
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
            f"this is the local state of rank {str(state['part'])[:_SHOWN_CHARACTERS]}. "
            "Join those of all ranks with merge_state_dicts, and load that"
        )
    position = _read_position(state)
    if (position.cursors < 0).any():
        lane = int(np.flatnonzero((position.cursors < 0).any(axis=(0, 2)))[0])
        raise StreamChangedError(f"cursors: lane {lane} has none. The state is damaged, or lacks a rank's part")
    layout, mixture = _read_layout(state), Mixture.from_json(state["mixture"])
    if len(mixture.names) != len(layout.canonical_nodes):
        raise _damaged("mixture", f"it has {len(mixture.names)} streams, num_canonical_nodes {len(layout.canonical_nodes)}")
    fields = {name: state[name] for name in _HELD_FIELDS}
    return Saved(position, layout, mixture, state["seq_len"], fields)


def _read_layout(state: Mapping[str, Any]) -> Layout:
    nodes, blocks = (_read_numbers(name, state[name]) for name in ("num_canonical_nodes", "shuffle_block_size"))
    if any(not number or state["num_lanes"] % number for number in nodes):
        raise _damaged("num_canonical_nodes", f"{show(nodes)} do not divide num_lanes {state['num_lanes']}")
    if len(blocks) != len(nodes) or min(blocks) < 2 or max(blocks) > _MOST["rows"]:
        raise _damaged("shuffle_block_size", f"{show(blocks)} are not sizes of {len(nodes)} orders' blocks")
    return Layout(state["num_lanes"], nodes, blocks)


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
            shown = ", ".join(map(show, values))
            raise StreamChangedError(f"{name} differs among the local states: {shown}. Save all ranks after the same batch")
    positions = [_read_position(state) for state in states]
    cursors = np.full_like(positions[0].cursors, _MISSING)
    residues = None if positions[0].residues is None else np.full(positions[0].residues.shape, b"", object)
    for state, position in zip(states, positions, strict=True):
        known = position.cursors[..., 0] != _MISSING
        if (cursors[known] != _MISSING).any():
            raise StreamChangedError(f"part: {show(state['part'])} has lanes that another has, too. Give each rank's state once")
        cursors[known] = position.cursors[known]
        if residues is not None and position.residues is not None:
            residues[known] = position.residues[known]
    if (cursors < 0).any():
        parts = ", ".join(show(state["part"]) for state in states)
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
    if not isinstance(state["version"], int) or state["version"] != VERSION:
        raise StreamChangedError(
            f"version: the state has {show(state['version'])}, this cloudload reads {VERSION}. "
            f"Use the cloudload that wrote it ({show(state.get('cloudload', 'unknown'))})"
        )
    missing, unknown = sorted(_KEYS - state.keys()), sorted(map(show, state.keys() - _KEYS))
    if missing or unknown:
        raise StreamChangedError(f"the state is damaged: missing fields {missing}, unknown fields [{', '.join(unknown)}]")
    for name, value in state.items():
        if not isinstance(value, str | int | None):
            raise _damaged(name, f"{type(value).__name__} is neither text nor a whole number")
    for name, most in _MOST.items():
        value, least = state[name], int(name not in _COUNTED)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _damaged(name, f"{show(value)} is not a count")


def _read_position(state: Mapping[str, Any]) -> Position:
    rows, table_rows = state["rows"], state["table_rows"]
    if table_rows > rows:
        raise _damaged("table_rows", f"{table_rows} is past rows {rows}")
    cursors = _read_cursors(state)
    skipped = _read_pairs("skipped", state["skipped"])
    bounds = [0, *(row for pair in skipped for row in pair), rows]
    if any(row > after for row, after in itertools.pairwise(bounds)):
        raise _damaged("skipped", f"{show(state['skipped'])} are not rows before {rows}, in order")
    residues, counts = _decode_residues(state, cursors), _read_counts(state["counts"])
    return Position(
        rows=rows,
        table_rows=table_rows,
        lanes=LaneTable(LaneArrays(cursors, residues, counts)),
        tail=_read_pairs("tail", state["tail"]) or None,
        skipped=skipped,
        batches=state["batches"],
        global_batch=state["global_batch"],
    )


def _read_cursors(state: Mapping[str, Any]) -> Ints:
    data, num_lanes = _decode("cursors", state["cursors"]), state["num_lanes"]
    num_components = len(_read_numbers("num_canonical_nodes", state["num_canonical_nodes"]))
    expected = num_components * num_lanes * 8
    if len(data) not in (expected, 2 * expected):
        raise _damaged("cursors", f"{len(data)} bytes where {num_lanes} lanes need {expected}")
    numbers = np.frombuffer(data, "<i4" if len(data) == expected else "<i8")
    cursors = numbers.reshape(num_components, num_lanes, 2).astype(np.int64)
    most = [_MOST_ORDINAL.get(state["packing"], _MOST_ORDINAL_ELSE), _MOST_OFFSET]
    if len(out := np.argwhere(cursors > most)):
        component, lane, _ = out[0].tolist()
        raise _damaged("cursors", f"lane {lane} stands at {cursors[component, lane].tolist()}, further than any run gets")
    return cursors


def _read_counts(text: Any) -> Ints:
    try:
        counts = np.array(json.loads(text))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _damaged("counts", str(error)[:_SHOWN_CHARACTERS]) from error
    if counts.ndim != 2 or counts.shape[1] != len(COUNTS):
        raise _damaged("counts", f"{counts.shape} numbers where each stream has {len(COUNTS)}")
    if counts.dtype != np.int64 or counts.min() < 0 or counts.max() > _MOST_COUNTED:
        raise _damaged("counts", f"{show(text)} are not all counts")
    return counts


def _read_numbers(name: str, text: Any) -> tuple[int, ...]:
    try:
        return tuple(map(_read_number, text.split(",")))
    except (AttributeError, ValueError) as error:
        raise _damaged(name, f"{show(text)} is not a list of numbers") from error


def _read_number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("no number")
    return int(text)


def _join_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{one}:{other}" for one, other in pairs)


def _read_pairs(name: str, text: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [tuple(map(_read_number, pair.split(":"))) for pair in text.split(",") if pair]
        return tuple((one, other) for one, other in pairs)
    except (AttributeError, ValueError) as error:
        raise _damaged(name, f"{show(text)} is not a list of pairs of numbers") from error


def _decode(name: str, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise _damaged(name, f"not base64 ({error})") from error


def show(value: object) -> str:
    """A value for a message, however long it is."""
    shown = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "…"


def _damaged(name: str, what: str) -> StreamChangedError:
    return StreamChangedError(f"{name}: {what}. The state is damaged: load an earlier one")


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


def _decode_residues(state: Mapping[str, Any], cursors: Ints) -> Residues | None:
    if state["packing"] != "best_fit":
        if state["residues"] != "":
            raise _damaged("residues", f"a state of packing {show(state['packing'])} has none")
        return None
    shape = cursors.shape[:2]
    try:
        planes = _unpack(_decode("residues", state["residues"]), _most_residue_bytes(cursors[..., 0]))
        data = np.frombuffer(planes, np.uint8).reshape(4, -1).T.tobytes()
        sizes = np.frombuffer(data, "<i4", shape[0] * shape[1])
        if (sizes < 0).any() or sizes.nbytes + int(sizes.sum(dtype=np.int64)) != len(data):
            raise ValueError("sizes that do not add up")
    except (zlib.error, ValueError) as error:
        raise _damaged("residues", str(error)) from error
    residues = np.empty(shape, object)
    residues.reshape(-1)[:] = split_residues(data[sizes.nbytes :], sizes.tolist())
    return residues


def _most_residue_bytes(ordinals: Ints) -> int:
    """What all residues take at most: each document before a lane's cursor has one span in it, in an open row of its own."""
    slots, spans = ordinals.size, int(np.maximum(ordinals, 0).sum())
    return min(_MOST_RESIDUE_BYTES, 8 * slots + spans * (4 + _BYTES_PER_SPAN))


def _unpack(data: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj()
    unpacked = decoder.decompress(data, most + 1)
    if len(unpacked) > most:
        raise ValueError(f"more than the {most:,} bytes that the cursors allow")
    if not decoder.eof or decoder.unused_data:
        raise ValueError("not one whole zlib stream")
    return unpacked
