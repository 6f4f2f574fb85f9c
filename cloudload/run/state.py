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

A state is plain JSON types under a fixed set of keys, so it travels alike through `json`, through
`torch.load` with `weights_only=True`, and through DCP. Nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload._version import __version__
from cloudload.errors import StreamChangedError
from cloudload.order.layout import Layout
from cloudload.order.mixture import Mixture
from cloudload.packing.tables import CURSOR_ORDINAL
from cloudload.run.position import LaneArrays, LaneTable, Position
from cloudload.run.recipe import Recipe
from cloudload.run.state_codec import (
    SHOWN_CHARACTERS,
    damaged,
    decode_residues,
    encode_cursors,
    encode_residues,
    join_pairs,
    read_counts,
    read_cursors,
    read_numbers,
    read_pairs,
    show,
)

VERSION = 3
State = dict[str, Any]
_MISSING = -1
_HELD_FIELDS = (
    *(
        "packing",
        "open_rows",
        "overflow",
        "shuffle",
        "shuffle_algo",
        "seed",
        "epochs",
        "text_key",
        "min_tokens",
        "transform",
    ),
    *(
        "num_lanes",
        "num_canonical_nodes",
        "shuffle_block_size",
        "choose",
        "shards",
        "data",
        "tokenizer",
        "bos_eos",
    ),
)
# far more than any run has, and so little that sums and products of them fit 64 bits
_MOST = {
    **dict.fromkeys(("rows", "table_rows", "batches"), 1 << 48),
    **dict.fromkeys(("global_batch", "seq_len"), 1 << 31),
    "num_lanes": 1 << 22,
}
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_KEYS = frozenset(
    {
        "version",
        "cloudload",
        "seq_len",
        "cursors",
        "residues",
        "tail",
        "part",
        "counts",
        "skipped",
        "mixture",
        "sources",
    }
    | {"tokenizer_backend"}
    | {*_COUNTED, *_HELD_FIELDS}
)


def build_state(
    recipe: Recipe, position: Position, tokenizer_backend: str, part: str = ""
) -> State:
    """The state of a position. `tokenizer_backend` is a `Choice`'s versions."""
    return {
        "version": VERSION,
        "cloudload": __version__,
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
        "tail": "" if position.tail is None else join_pairs(position.tail),
        "skipped": join_pairs(position.skipped),
        "counts": json.dumps(position.counts.tolist(), separators=(",", ":")),
        "cursors": encode_cursors(position.cursors),
        "residues": encode_residues(position.residues),
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
            f"this is the local state of rank {str(state['part'])[:SHOWN_CHARACTERS]}. "
            "Join those of all ranks with merge_state_dicts, and load that"
        )
    position = _read_position(state)
    if (position.cursors < 0).any():
        lane = int(np.flatnonzero((position.cursors < 0).any(axis=(0, 2)))[0])
        raise StreamChangedError(
            f"cursors: lane {lane} has none. The state is damaged, or lacks a rank's part"
        )
    layout, mixture = _read_layout(state), Mixture.from_json(state["mixture"])
    if len(mixture.names) != len(layout.canonical_nodes):
        raise damaged(
            "mixture",
            f"it has {len(mixture.names)} streams, num_canonical_nodes "
            f"{len(layout.canonical_nodes)}",
        )
    fields = {name: state[name] for name in _HELD_FIELDS}
    return Saved(position, layout, mixture, state["seq_len"], fields)


def _read_layout(state: Mapping[str, Any]) -> Layout:
    nodes, blocks = (
        read_numbers(name, state[name]) for name in ("num_canonical_nodes", "shuffle_block_size")
    )
    if any(not number or state["num_lanes"] % number for number in nodes):
        raise damaged(
            "num_canonical_nodes", f"{show(nodes)} do not divide num_lanes {state['num_lanes']}"
        )
    if len(blocks) != len(nodes) or min(blocks) < 2 or max(blocks) > _MOST["rows"]:
        raise damaged(
            "shuffle_block_size", f"{show(blocks)} are not sizes of {len(nodes)} orders' blocks"
        )
    return Layout(state["num_lanes"], nodes, blocks)


# ---------------------------------------------------------------- parts


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> State:
    """The whole state of the local states of all ranks. Raises `StreamChangedError` where they do
    not belong together."""
    if not states:
        raise StreamChangedError("no local states to merge: give those of all ranks")
    for state in states:
        _check_keys(state)
    first = dict(states[0])
    for name in (
        "rows",
        *sorted(_KEYS - {"rows", "cursors", "residues", "counts", "part", "tokenizer_backend"}),
    ):
        values = [state[name] for state in states]
        if any(value != values[0] for value in values):
            shown = ", ".join(map(show, values))
            raise StreamChangedError(
                f"{name} differs among the local states: {shown}. Save all "
                "ranks after the same batch"
            )
    positions = [_read_position(state) for state in states]
    cursors = np.full_like(positions[0].cursors, _MISSING)
    residues = (
        None if positions[0].residues is None else np.full(positions[0].residues.shape, b"", object)
    )
    for state, position in zip(states, positions, strict=True):
        known = position.cursors[..., CURSOR_ORDINAL] != _MISSING
        if (cursors[known] != _MISSING).any():
            raise StreamChangedError(
                f"part: {show(state['part'])} has lanes that another has, too. "
                "Give each rank's state once"
            )
        cursors[known] = position.cursors[known]
        if residues is not None and position.residues is not None:
            residues[known] = position.residues[known]
    if (cursors < 0).any():
        parts = ", ".join(show(state["part"]) for state in states)
        raise StreamChangedError(
            f"the local states {parts} leave lanes without a cursor. Give those of all ranks"
        )
    counts = sum(position.counts for position in positions)
    return {
        **first,
        "part": "",
        "counts": json.dumps(np.asarray(counts).tolist(), separators=(",", ":")),
        "cursors": encode_cursors(cursors),
        "residues": encode_residues(residues),
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
        raise StreamChangedError(
            "this is not a cloudload state: it has no version. Load what state_dict() gave"
        )
    if not isinstance(state["version"], int) or state["version"] != VERSION:
        raise StreamChangedError(
            f"version: the state has {show(state['version'])}, this cloudload reads {VERSION}. "
            f"Use the cloudload that wrote it ({show(state.get('cloudload', 'unknown'))})"
        )
    missing, unknown = sorted(_KEYS - state.keys()), sorted(map(show, state.keys() - _KEYS))
    if missing or unknown:
        raise StreamChangedError(
            f"the state is damaged: missing fields {missing}, unknown fields [{', '.join(unknown)}]"
        )
    for name, value in state.items():
        if not isinstance(value, str | int | None):
            raise damaged(name, f"{type(value).__name__} is neither text nor a whole number")
    for name, most in _MOST.items():
        value, least = state[name], int(name not in _COUNTED)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise damaged(name, f"{show(value)} is not a count")


def _read_position(state: Mapping[str, Any]) -> Position:
    rows, table_rows = state["rows"], state["table_rows"]
    if table_rows > rows:
        raise damaged("table_rows", f"{table_rows} is past rows {rows}")
    cursors = read_cursors(state)
    skipped = read_pairs("skipped", state["skipped"])
    bounds = [0, *(row for pair in skipped for row in pair), rows]
    if any(row > after for row, after in itertools.pairwise(bounds)):
        raise damaged("skipped", f"{show(state['skipped'])} are not rows before {rows}, in order")
    residues, counts = decode_residues(state, cursors), read_counts(state["counts"])
    return Position(
        rows=rows,
        table_rows=table_rows,
        lanes=LaneTable(LaneArrays(cursors, residues, counts)),
        tail=read_pairs("tail", state["tail"]) or None,
        skipped=skipped,
        batches=state["batches"],
        global_batch=state["global_batch"],
    )
