"""Decode a state: check its fields, and parse them without a recipe.

    state ─► all fields, of this version, of plain types? ─► Saved    position, layout, mixture,
                                                                      and the fields to compare

Treat a state as untrusted. A `StreamChangedError` names the first field that is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudload.config import MAX_LANES, choices
from cloudload.errors import StreamChangedError
from cloudload.order import Layout, Mixture
from cloudload.run import state_fields
from cloudload.run.not_a_state import STATE_KEYS, explain_not_a_state, find_nested, is_state
from cloudload.run.position import MOST_ROWS, Position
from cloudload.run.state_codec import damaged, read_numbers, read_position, show

VERSION = 3
"""The version of the format of states."""
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_MOST = {
    **dict.fromkeys(("rows", "table_rows", "batches"), MOST_ROWS),
    **dict.fromkeys(("global_batch", "seq_len"), 1 << 31),
    "num_lanes": MAX_LANES,
}
"""The largest value of each field that is a whole number."""
_COMPARED_FIELDS = (
    *(*state_fields.HELD_CONFIG_FIELDS, "transform", "num_lanes", "num_canonical_nodes"),
    *("shuffle_block_size", "choose", "shards", "data", "tokenizer", "bos_eos", "token_ids"),
    *(state_fields.SAMPLES_FIELD, state_fields.ORDER_FIELD, state_fields.TOKENS_FIELD),
    state_fields.MAX_EPOCHS_FIELD,
)
_OPTIONAL_KEYS = state_fields.OPTIONAL_FIELDS | {
    *("origin", "document_sizes", "stream_tails", state_fields.PART_FIELD)
}
_KEYS = {
    *("version", "cloudload", *_MOST, *_COMPARED_FIELDS, "mixture", "sources", "cursors"),
    *("residues", "counts", "tail", "skipped", "tokenizer_backend"),
} - _OPTIONAL_KEYS
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "on_error": choices.ON_ERROR,
    "stopping": choices.STOPPINGS,
    state_fields.FAIR_FIELD: (state_fields.FAIR,),
}
"""The possible values of fields that a state may omit."""


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
    """Decode a state.

    Raises `StreamChangedError` if it is damaged, has a different format version, or has only one
    rank's lanes.
    """
    check_keys(state)
    _check_part(state)
    fields, layout, position = _read_fields(state), _read_layout(state), read_position(state)
    mixture = Mixture.from_json(state["mixture"])
    if len(mixture.names) != len(layout.canonical_nodes):
        raise damaged(
            "mixture",
            f"it has {len(mixture.names)} streams, but num_canonical_nodes has "
            f"{len(layout.canonical_nodes)} values",
        )
    name = state_fields.STREAM_SHARDS_FIELD
    return Saved(
        position=position,
        layout=layout,
        mixture=mixture,
        seq_len=state["seq_len"],
        fields=fields,
        sources=state["sources"],
        tokenizer_backend=state["tokenizer_backend"],
        stopping=state.get("stopping", choices.ALL),
        stream_shards=read_numbers(name, state[name]) if name in state else (),
        is_fair=state_fields.FAIR_FIELD in state,
    )


def check_keys(state: Mapping[str, Any]) -> None:
    """Raise `StreamChangedError` unless this is a state with all fields, of plain JSON types."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise StreamChangedError(explain_not_a_state(state))
    if not state.keys() >= STATE_KEYS and find_nested(state, is_state) is not None:
        raise StreamChangedError(explain_not_a_state(state))
    if not isinstance(state["version"], int) or state["version"] != VERSION:
        raise StreamChangedError(
            f"version: the state has format version {show(state['version'])}, but "
            "this version of "
            f"cloudload reads only {VERSION}. Use the version of cloudload that wrote the state "
            f"({show(state.get('cloudload', 'unknown'))})"
        )
    missing, unknown = (
        sorted(_KEYS - state.keys()),
        sorted(map(show, state.keys() - _KEYS - _OPTIONAL_KEYS)),
    )
    if missing or unknown:
        raise StreamChangedError(
            f"the state has the wrong fields: missing {missing}, unknown [{', '.join(unknown)}]. "
            "The state is damaged. Load an earlier one"
        )
    for name, value in state.items():
        if not isinstance(value, str | int | None):
            raise damaged(name, f"{type(value).__name__} is neither text nor a whole number")
    for name, most in _MOST.items():
        value, least = state[name], int(name not in _COUNTED)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise damaged(name, f"{show(value)} is not a whole number from {least} to {most:,}")


def _check_part(state: Mapping[str, Any]) -> None:
    """Raise `StreamChangedError` if a state of an older version has only one rank's lanes."""
    if part := state.get(state_fields.PART_FIELD):
        raise StreamChangedError(
            f"part: this state has only the lanes of one rank ({show(part)}), and is "
            "not merged with those of the other ranks. Merge them with the version of cloudload "
            f"that wrote them ({show(state['cloudload'])}), or load a whole state. "
            "Ranks that cannot communicate save whole states if the data has token lengths, which "
            "cloudload count counts"
        )


def _read_fields(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are compared with those of a recipe.

    `token_ids` and `samples` are missing if the state does not have them. Other fields that the
    state omits have their default values.
    """
    for name, values in _CHOICES.items():
        if name in state and state[name] not in values:
            raise damaged(name, f"{show(state[name])} is not one of {list(values)}")
    of_no_stream = "," * str(state["bos_eos"]).count(",")
    known = {
        "on_error": choices.RAISE,
        state_fields.ORDER_FIELD: "",
        state_fields.TOKENS_FIELD: of_no_stream,
        state_fields.MAX_EPOCHS_FIELD: of_no_stream,
        **state,
    }
    return {name: known[name] for name in _COMPARED_FIELDS if name in known}


def _read_layout(state: Mapping[str, Any]) -> Layout:
    nodes, blocks = (
        read_numbers(name, state[name]) for name in ("num_canonical_nodes", "shuffle_block_size")
    )
    if any(not count or state["num_lanes"] % count for count in nodes):
        raise damaged(
            "num_canonical_nodes",
            f"{show(nodes)} do not divide num_lanes {state['num_lanes']}",
        )
    if len(blocks) != len(nodes) or min(blocks) < 2 or max(blocks) > MOST_ROWS:
        raise damaged(
            "shuffle_block_size",
            f"{show(blocks)} are not {len(nodes)} block sizes from 2 to {MOST_ROWS:,}",
        )
    return Layout(state["num_lanes"], nodes, blocks)
