"""The state of a run: a small, flat dict of its position and recipe.

    version, cloudload      version of the format, and of the library that wrote the state
    rows                    number of rows of the run that were delivered or skipped
    table_rows              number of rows that the cursors include; before the tail, a resume reads
                            the rows from there to `rows` again and drops them
    cursors                 base64 of [components, num_lanes, 2]: ordinal and offset of each lane's
                            next token; little-endian int32, or int64 if one of them needs it
    document_sizes          base64 of [components, num_lanes]: number of tokens of the document that
                            each cursor is in, or 0, so a resume detects changed text;
                            little-endian uint16, or wider if one of them needs it; "" if no cursor
                            is in a document; older states have no such key
    residues                base64 of the compressed residues (`rows.packing.residue`), in chunks
                            of 16 lanes that are joined by "."; older states have a single chunk;
                            "" if the packing has no residue
    tail                    "" before the tail of a finite run, which begins at row table_rows; then
                            `rows.packing.tail.Stages` (seq_len:rows), as "512:100,1024:3"
    counts, skipped         statistics by stream; and the ranges of rows skipped, as "100:164,…"
    batches, global_batch   number of global batches delivered or skipped, and of rows in the last
                            one; a trace uses them to count steps
    stream_tails            the tails of streams that ended in a mixture, by stream, as
                            "512:100,1024:3;;512:0"; "512:0" for a stream whose last row was not in
                            a tail. There is no such key before the first stream has a tail
    max_epochs, stopping    the options that determine where the streams of a mixture, and the
                            mixture itself, end; left out if they have their default values
    origin                  "epoch:num_read" if the run continues a StreamingDataset's: it started
                            after `num_read` documents of `epoch`; otherwise there is no such key
    fair_start              "sqrt" if at most √n of the first n documents of a `best_fit` lane wait
                            in open rows; older states, and those of other packings, have no such
                            key, and a resume continues without the rule
    token_ids               hash of the IDs of fixed texts, so a resume detects a version of
                            tokenizers that encodes differently; older states, and states of
                            pre-tokenized data alone, have no such key
    order_ids               hash of the order of fixed shards, so a resume detects a version of
                            NumPy that shuffles differently; there is no such key if NumPy shuffles
                            as all versions so far do
    on_error                "skip" if bad documents are left out; otherwise there is no such key
    mixture                 names and weights of the streams, and the rows from which they apply
    tokens_key              column and dtype of the token IDs of pre-tokenized streams; if all
                            streams are text, there is no such key
    samples                 like data, but without the shards' headers, so that it stays the same if
                            the samples are written with a different compression; "" for a stream or
                            corpus whose index has no hashes of its samples; if no index has them,
                            there is no such key
    stream_shards           number of shards of each stream, so that a resume after an append finds
                            the original shards; only if several streams are read as one corpus,
                            because the fingerprint of a single stream is enough; older states have
                            no such key
    data, bos_eos, …        fingerprints and config that determine the rows; values by stream or
                            component are joined by commas
    sources                 locations of data and tokenizer, for `cloudload.provenance`; may differ
                            on resume, because copies of the data may be elsewhere
    tokenizer_backend       the versions of the backend's libraries; may differ on resume, because
                            all backends produce the same token IDs

A state has a fixed set of keys, and its values are plain JSON types. `json`, `torch.load` with
`weights_only=True`, and DCP all preserve it. Loading a state executes and unpickles nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload._version import __version__
from cloudload.config import MAX_LANES, choices
from cloudload.errors import StreamChangedError
from cloudload.order import Layout, Mixture
from cloudload.run import state_codec, state_fields
from cloudload.run.lane_texts import LaneTexts
from cloudload.run.not_a_state import explain_not_a_state, find_nested, is_state
from cloudload.run.position import DATA_START, MOST_ROWS, LaneArrays, LaneLog, Origin, Position
from cloudload.run.recipe import Recipe

VERSION = 3
State = dict[str, Any]
_HELD_FIELDS = (
    *(
        *state_fields.HELD_CONFIG_FIELDS,
        "transform",
        "num_lanes",
        "num_canonical_nodes",
        "shuffle_block_size",
    ),
    *("choose", "shards", "data", "tokenizer", "bos_eos"),
)
_MOST = {
    **dict.fromkeys(("rows", "table_rows", "batches"), MOST_ROWS),
    **dict.fromkeys(("global_batch", "seq_len"), 1 << 31),
    "num_lanes": MAX_LANES,
}
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_OPTIONAL_KEYS = state_fields.OPTIONAL_FIELDS | {
    *("origin", "document_sizes", "stream_tails", state_fields.PART_FIELD)
}
_KEYS = (
    frozenset((*_COUNTED, *_HELD_FIELDS, "version", "cloudload", "seq_len", "mixture"))
    | {"cursors", "residues", "counts", "tail", "skipped", "sources", "tokenizer_backend"}
) - _OPTIONAL_KEYS


def build_state(recipe: Recipe, position: Position, tokenizer_backend: str) -> State:
    """Build the state of a position.

    `tokenizer_backend` is `Choice.versions`. Raises `ValueError` for a state that could not be
    loaded.
    """
    origin = position.origin
    state = {
        "version": VERSION,
        "cloudload": __version__,
        "rows": position.rows,
        "table_rows": position.lanes_row,
        "batches": position.batches,
        "global_batch": position.global_batch,
        "seq_len": recipe.config.seq_len,
        **recipe.saved_fields,
        "mixture": recipe.mixture.to_json(),
        "sources": recipe.sources,
        "tokenizer_backend": tokenizer_backend,
        "tail": "",
        "skipped": state_codec.join_pairs(position.skipped),
        **_encode_lanes(position.lanes.arrays, position.lanes.texts),
        **({"origin": state_codec.join_pairs([origin])} if any(origin) else {}),
    }
    _check_saved(state)
    return state


def _check_saved(state: State) -> None:
    """Raise `ValueError` for a state that `_check_keys` would refuse, or `torch.load` would."""
    for name, value in state.items():
        if type(value) not in (str, int, bool, type(None)):
            fault = f"{state_codec.show(value)}, a {type(value).__name__}"
            raise ValueError(f"this state cannot be saved, because {name} is {fault}")
    try:
        _check_keys(state)
    except StreamChangedError as error:
        raise ValueError(f"this state could not be loaded: {error}") from error


def _encode_lanes(arrays: LaneArrays, texts: LaneTexts) -> dict[str, str]:
    """Encode the cursors, residues and statistics of lanes as fields of a state."""
    return {
        "counts": state_codec.encode_counts(arrays.counts),
        **texts.encode(arrays.cursors, arrays.residues),
        **state_codec.encode_tails(arrays.tails),
    }


# ---------------------------------------------------------------- loading


@dataclass(frozen=True)
class Saved:
    """The parsed content of a state, before it is compared with a loader's recipe."""

    position: Position
    layout: Layout
    mixture: Mixture
    seq_len: int
    fields: Mapping[str, Any]
    sources: str
    """Locations of data and tokenizer, as JSON; see `run.sources`."""
    tokenizer_backend: str
    """The versions of the libraries that encoded the text."""
    stopping: str = choices.ALL
    """The `stopping` of a mixture whose streams end."""
    stream_shards: tuple[int, ...] = ()
    """The number of shards of each stream; empty if the state does not record it."""
    is_fair: bool = False
    """Whether the run began with the rule `FAIR`."""


def read_state(state: Mapping[str, Any]) -> Saved:
    """Parse a state.

    Raises `StreamChangedError` if it is damaged, has a different format version, or has only one
    rank's lanes.
    """
    _check_keys(state)
    if part := state.get(state_fields.PART_FIELD):
        raise StreamChangedError(
            f"part: this state has only the lanes of one rank ({state_codec.show(part)}), and is "
            "not merged with those of the other ranks. Merge them with the version of cloudload "
            f"that wrote them ({state_codec.show(state['cloudload'])}), or load a whole state. "
            "Ranks that cannot communicate save whole states if the data has token lengths, which "
            "cloudload count counts"
        )
    position = _read_position(state)
    if (position.cursors < 0).any():
        lane = int(np.flatnonzero((position.cursors < 0).any(axis=(0, 2)))[0])
        raise StreamChangedError(
            f"cursors: lane {lane} has no cursor. The state is damaged. Load an earlier one"
        )
    layout, mixture = _read_layout(state), Mixture.from_json(state["mixture"])
    if len(mixture.names) != len(layout.canonical_nodes):
        raise state_codec.damaged(
            "mixture",
            f"it has {len(mixture.names)} streams, but num_canonical_nodes has "
            f"{len(layout.canonical_nodes)} values",
        )
    names = (*_HELD_FIELDS, "token_ids", state_fields.SAMPLES_FIELD)
    fields = {name: state[name] for name in names if name in state}
    fields["on_error"] = state.get("on_error", choices.RAISE)
    fields[state_fields.ORDER_FIELD] = state.get(state_fields.ORDER_FIELD, "")
    if fields["on_error"] not in choices.ON_ERROR:
        raise state_codec.damaged(
            "on_error", f"{state_codec.show(fields['on_error'])} is not {choices.SKIP!r}"
        )
    for name in (state_fields.TOKENS_FIELD, state_fields.MAX_EPOCHS_FIELD):
        fields[name] = state.get(name, "," * str(state["bos_eos"]).count(","))
    return Saved(
        position=position,
        layout=layout,
        mixture=mixture,
        seq_len=state["seq_len"],
        fields=fields,
        sources=state["sources"],
        tokenizer_backend=state["tokenizer_backend"],
        stopping=_read_stopping(state),
        stream_shards=(
            state_codec.read_numbers(
                state_fields.STREAM_SHARDS_FIELD, state[state_fields.STREAM_SHARDS_FIELD]
            )
            if state_fields.STREAM_SHARDS_FIELD in state
            else ()
        ),
        is_fair=_read_fair(state),
    )


def _read_fair(state: Mapping[str, Any]) -> bool:
    rule = state.get(state_fields.FAIR_FIELD)
    if rule not in (None, state_fields.FAIR):
        raise state_codec.damaged(
            state_fields.FAIR_FIELD, f"{state_codec.show(rule)} is not {state_fields.FAIR!r}"
        )
    return rule == state_fields.FAIR


def _read_stopping(state: Mapping[str, Any]) -> str:
    stopping = state.get("stopping", choices.ALL)
    if stopping not in choices.STOPPINGS:
        raise state_codec.damaged(
            "stopping", f"{state_codec.show(stopping)} is not one of {list(choices.STOPPINGS)}"
        )
    return str(stopping)


def _read_layout(state: Mapping[str, Any]) -> Layout:
    nodes, blocks = (
        state_codec.read_numbers(name, state[name])
        for name in ("num_canonical_nodes", "shuffle_block_size")
    )
    if any(not number or state["num_lanes"] % number for number in nodes):
        raise state_codec.damaged(
            "num_canonical_nodes",
            f"{state_codec.show(nodes)} do not divide num_lanes {state['num_lanes']}",
        )
    if len(blocks) != len(nodes) or min(blocks) < 2 or max(blocks) > MOST_ROWS:
        raise state_codec.damaged(
            "shuffle_block_size",
            f"{state_codec.show(blocks)} are not {len(nodes)} block sizes from 2 to {MOST_ROWS:,}",
        )
    return Layout(state["num_lanes"], nodes, blocks)


# ---------------------------------------------------------------- parsing


def _check_keys(state: Mapping[str, Any]) -> None:
    """Raise `StreamChangedError` unless this is a state with all fields, of plain JSON types."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise StreamChangedError(explain_not_a_state(state))
    if not is_state(state) and find_nested(state, is_state) is not None:
        raise StreamChangedError(explain_not_a_state(state))
    if not isinstance(state["version"], int) or state["version"] != VERSION:
        raise StreamChangedError(
            f"version: the state has format version {state_codec.show(state['version'])}, but "
            "this version of "
            f"cloudload reads only {VERSION}. Use the version of cloudload that wrote the state "
            f"({state_codec.show(state.get('cloudload', 'unknown'))})"
        )
    missing, unknown = (
        sorted(_KEYS - state.keys()),
        sorted(map(state_codec.show, state.keys() - _KEYS - _OPTIONAL_KEYS)),
    )
    if missing or unknown:
        raise StreamChangedError(
            f"the state has the wrong fields: missing {missing}, unknown [{', '.join(unknown)}]. "
            "The state is damaged. Load an earlier one"
        )
    for name, value in state.items():
        if not isinstance(value, str | int | None):
            raise state_codec.damaged(
                name, f"{type(value).__name__} is neither text nor a whole number"
            )
    for name, most in _MOST.items():
        value, least = state[name], int(name not in _COUNTED)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise state_codec.damaged(
                name, f"{state_codec.show(value)} is not a whole number from {least} to {most:,}"
            )


def _read_position(state: Mapping[str, Any]) -> Position:
    rows, table_rows = state["rows"], state["table_rows"]
    if table_rows > rows:
        raise state_codec.damaged(
            "table_rows", f"{table_rows} is greater than rows, which is {rows}"
        )
    cursors = state_codec.read_cursors(state)
    skipped = state_codec.read_pairs("skipped", state["skipped"])
    bounds = [0, *(row for pair in skipped for row in pair), rows]
    if any(row > after for row, after in itertools.pairwise(bounds)):
        raise state_codec.damaged(
            "skipped",
            f"{state_codec.show(state['skipped'])} are not ascending ranges of rows before {rows}",
        )
    origin = [Origin(*pair) for pair in state_codec.read_pairs("origin", state.get("origin", ""))]
    if len(origin) > 1:
        raise state_codec.damaged(
            "origin", f"{state_codec.show(state['origin'])} is not a single pair epoch:num_read"
        )
    residues, counts = (
        state_codec.decode_residues(state, cursors),
        state_codec.read_counts(state["counts"]),
    )
    tails = state_codec.read_tails(state, len(cursors))
    return Position(
        rows=rows,
        table_rows=rows if state["tail"] else table_rows,
        lanes=LaneLog(LaneArrays(cursors, residues, counts, tails)),
        skipped=skipped,
        batches=state["batches"],
        global_batch=state["global_batch"],
        origin=origin[0] if origin else DATA_START,
    )
