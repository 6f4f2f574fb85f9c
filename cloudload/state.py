"""The state: where the row stream stands, small, flat, and the same whatever the world.

    version, cloudload      of the format, and of the library that wrote it
    rows                    rows of the run that have been handed out
    table_rows              rows up to which the cursors count; a resume reads again, and drops, the rows from there
    cursors                 base64 of little-endian int64 [components, num_lanes, 2]: ordinal and offset of each lane's next token
    residues                base64 of what each lane has read and not emitted (`pack.encode_residue`), compressed; "" for none
    tail                    "" until the lanes of a finite run have ended at table_rows; then `tail.Stages`, as "512:100,1024:3"
    part                    "" for a whole state, else the world indices it covers, such as "1/4"
    counts, skipped         of the statistics: by stream; and the rows passed over, as "100:164,…"
    batches, global_batch   global batches handed out, and the rows of the last: by which a trace counts steps
    mixture                 the streams' names and weights, and from which rows on
    data, bos_eos, …        fingerprints and config that the rows follow from; those of streams are joined by commas
    sources                 where the data and the tokenizer were, for `cloudload trace`; never compared

A state is plain JSON types under a fixed set of keys, so it travels alike through `json`, through `torch.load` with
`weights_only=True`, and through DCP. Nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cloudload
from cloudload.components import Component
from cloudload.config import RowsConfig
from cloudload.errors import StreamChangedError
from cloudload.lanes import Ints, Layout
from cloudload.mixture import Mixture
from cloudload.pack import Packing, residue_spans, unpack_residue
from cloudload.stats import COUNTS
from cloudload.tail import Stages, next_stages
from cloudload.worker import Residues

logger = logging.getLogger(__name__)

VERSION = 2
State = dict[str, Any]

_MISSING = -1
# seq_len is not among them: cursors count tokens, so a run goes on with rows of another length
_CONFIG_FIELDS = (
    "packing",
    "open_rows",
    "overflow",
    "shuffle",
    "shuffle_algo",
    "seed",
    "epochs",
    "text_key",
    "min_tokens",
)
_DESCRIPTIONS = {
    "data": "data (fingerprints of the shards' sizes, hashes and columns, by stream or corpus)",
    "tokenizer": "tokenizer (fingerprint)",
    "bos_eos": "bos_eos (the ids put before and after documents, by stream)",
    "choose": "choose (samples that each stream gives to an epoch)",
}
# of these a stream that is added at the end adds an item
_GROWING_FIELDS = ("data", "bos_eos", "choose", "num_canonical_nodes", "shuffle_block_size")
# a change of these leaves every cursor in its place, ...
_HARMLESS_FIELDS = ("open_rows", "min_tokens", "epochs")
# ... and a change of these does so at the ends of documents
_CONTENT_FIELDS = ("data", "tokenizer", "bos_eos", "text_key", "transform", "overflow")
_HELD_FIELDS = (*_CONFIG_FIELDS, "transform", "choose", "shuffle_block_size", "num_canonical_nodes", "num_lanes", *_DESCRIPTIONS)
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_KEYS = frozenset(
    {"version", "cloudload", "seq_len", "cursors", "residues", "tail", "part", "counts", "skipped", "mixture", "sources"}
    | {*_COUNTED, *_HELD_FIELDS}
)


@dataclass(frozen=True)
class Position:
    """Where a run stands: `rows` handed out, and how the lanes stood at `table_rows`; -1 where unknown."""

    rows: int
    table_rows: int
    cursors: Ints
    """int64 [components, lanes, 2]."""
    residues: Residues | None
    """bytes [components, lanes]; None where the packing has none."""
    counts: Ints
    """int64 [streams, counts], by `stats.COUNTS`: at `table_rows`, and in a tail at `rows`."""
    tail: Stages | None = None
    """The rows of the tail so far; None before it."""
    skipped: tuple[tuple[int, int], ...] = ()
    """The rows [start, stop) that were passed over."""
    batches: int = 0
    global_batch: int = 0

    @staticmethod
    def start(num_components: int, num_lanes: int, num_streams: int, packing: Packing) -> Position:
        """Before the first row."""
        residues = None
        if packing.name == "best_fit":
            residues = np.full((num_components, num_lanes), b"", object)
        return Position(
            0, 0, np.zeros((num_components, num_lanes, 2), np.int64), residues, np.zeros((num_streams, len(COUNTS)), np.int64)
        )


@dataclass(frozen=True)
class Identity:
    """What a state must agree with: the config, what was resolved of it, and fingerprints."""

    config: RowsConfig
    layout: Layout
    mixture: Mixture
    data: tuple[str, ...]
    """The fingerprint of each component."""
    tokenizer: str
    frames: tuple[tuple[int | None, int | None], ...]
    """The ids of bos and eos of each stream."""
    choose: tuple[int, ...]
    """The documents of an epoch of each component, or of each stream where they are resampled."""
    sources: str
    """Where data and tokenizer are, as JSON."""

    def fields(self) -> dict[str, Any]:
        """The held fields by name."""
        return {
            **{name: getattr(self.config, name) for name in _CONFIG_FIELDS},
            "transform": self.config.transform_name,
            "num_lanes": self.layout.num_lanes,
            "num_canonical_nodes": ",".join(map(str, self.layout.canonical_nodes)),
            "shuffle_block_size": ",".join(map(str, self.layout.shuffle_block_sizes)),
            "data": ",".join(self.data),
            "tokenizer": self.tokenizer,
            "bos_eos": ",".join(f"{bos}/{eos}" for bos, eos in self.frames),
            "choose": ",".join(map(str, self.choose)),
        }


def build_state(identity: Identity, position: Position, part: str = "") -> State:
    """The state of a position."""
    return {
        "version": VERSION,
        "cloudload": cloudload.__version__,
        "rows": position.rows,
        "table_rows": position.table_rows,
        "batches": position.batches,
        "global_batch": position.global_batch,
        "seq_len": identity.config.seq_len,
        **identity.fields(),
        "mixture": identity.mixture.to_json(),
        "sources": identity.sources,
        "part": part,
        "tail": "" if position.tail is None else _join_pairs(position.tail),
        "skipped": _join_pairs(position.skipped),
        "counts": json.dumps(position.counts.tolist(), separators=(",", ":")),
        "cursors": base64.b64encode(position.cursors.astype("<i8").tobytes()).decode("ascii"),
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


def go_on(saved: Saved, identity: Identity, components: Sequence[Component], on_change: Mapping[str, str]) -> Position:
    """The position to go on from with what `identity` says now.

    Raises `StreamChangedError` that names every field that differs and may not, and what is out of place.
    """
    _check_on_change(on_change)
    known = saved.position.cursors.shape[0]
    if known > len(components):
        raise StreamChangedError(
            f"mixture: the state has {known} streams, but only {len(components)} are there. To end a stream, give it proportion=0"
        )
    changed = _check_fields(saved, identity, components, on_change)
    if len(saved.position.counts) > len(identity.frames):
        raise StreamChangedError(
            f"counts: of {len(saved.position.counts)} streams, not {len(identity.frames)}. The state is damaged"
        )
    position = _add_components(saved.position, len(components), len(identity.frames))
    if set(changed) & set(_CONTENT_FIELDS):
        position = _leave_documents(position, changed)
    _check_cursors(position, components)
    if saved.seq_len != identity.config.seq_len:
        position = _with_seq_len(saved, position, identity.config.seq_len)
    return position


def _check_on_change(on_change: Mapping[str, str]) -> None:
    for name, value in on_change.items():
        if value != "accept":
            raise ValueError(f"on_change[{name!r}] is {value!r}; the one choice is 'accept'")
        if name not in (*_HARMLESS_FIELDS, *_CONTENT_FIELDS):
            raise ValueError(
                f"on_change: a change of {name!r} cannot be accepted, for documents would be lost and repeated. "
                f"What can: {', '.join(sorted((*_HARMLESS_FIELDS, *_CONTENT_FIELDS)))}"
            )


def _check_fields(
    saved: Saved, identity: Identity, components: Sequence[Component], on_change: Mapping[str, str]
) -> dict[str, tuple[Any, Any]]:
    """The fields that differ and were accepted: what was saved and what was found."""
    found, grows = identity.fields(), len(components) > saved.position.cursors.shape[0]
    changed = {}
    for name, value in saved.fields.items():
        now = found[name]
        if grows and name in _GROWING_FIELDS and isinstance(value, str):
            now = ",".join(now.split(",")[: len(value.split(","))])
        if value != now:
            changed[name] = (value, found[name])
    refused = {name: values for name, values in changed.items() if on_change.get(name) != "accept"}
    if refused:
        lines = [f"  {_DESCRIPTIONS.get(name, name)}: saved {value!r}, found {now!r}" for name, (value, now) in refused.items()]
        acceptable = [name for name in refused if name in (*_HARMLESS_FIELDS, *_CONTENT_FIELDS)]
        advice = "Go on with what was saved, or start a new run without this state"
        if len(acceptable) == len(refused):
            advice += f"; or take the change on purpose with on_change={dict.fromkeys(acceptable, 'accept')}"
        raise StreamChangedError("the state is of another stream of rows; these differ:\n" + "\n".join(lines) + f"\n{advice}")
    if "data" in changed and saved.fields["choose"] != found["choose"]:
        raise StreamChangedError(
            "data: the numbers of documents differ, so the cursors stand at other documents. Start a new run"
        )
    if "epochs" in changed and saved.position.tail is not None:
        raise StreamChangedError("epochs: the run is in its tail, past the point where more epochs could be added")
    return changed


def _add_components(position: Position, num_components: int, num_streams: int) -> Position:
    """Cursors at the start for the streams that were added."""
    saved, num_lanes, _ = position.cursors.shape
    cursors = np.zeros((num_components, num_lanes, 2), np.int64)
    cursors[:saved] = position.cursors
    counts = np.zeros((num_streams, len(COUNTS)), np.int64)
    counts[: len(position.counts)] = position.counts
    residues = None
    if position.residues is not None:
        residues = np.full((num_components, num_lanes), b"", object)
        residues[:saved] = position.residues
    return replace(position, cursors=cursors, counts=counts, residues=residues)


def _leave_documents(position: Position, changed: Mapping[str, Any]) -> Position:
    """Every lane at the end of the document that it stood in, without what it held back."""
    if position.tail is not None or position.rows != position.table_rows:
        raise StreamChangedError(f"{', '.join(changed)}: cannot change between two exchanges, or in the tail of a finite run")
    cursors = position.cursors.copy()
    logger.warning("%s changed: what was left of the documents in hand of the lanes is left out", ", ".join(changed))
    cursors[..., 0] += cursors[..., 1] > 0
    cursors[..., 1] = 0
    residues = None if position.residues is None else np.full(position.residues.shape, b"", object)
    return replace(position, cursors=cursors, residues=residues)


def _with_seq_len(saved: Saved, position: Position, seq_len: int) -> Position:
    if position.tail is not None:
        return position
    if position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, and the state lies between two exchanges "
            f"(rows {position.table_rows:,} to {position.rows:,}). Save it with exchange_every=1 before changing seq_len"
        )
    if position.residues is None:
        return position
    residues = position.residues.copy()
    for component, lane in np.ndindex(residues.shape):
        residues[component, lane] = unpack_residue(residues[component, lane], int(position.cursors[component, lane, 0]))
    return replace(position, residues=residues)


def _check_cursors(position: Position, components: Sequence[Component]) -> None:
    for component, cursors in zip(components, position.cursors.tolist(), strict=True):
        for lane, (ordinal, offset) in enumerate(cursors):
            end = component.lanes.end(lane)
            if end is not None and (ordinal > end or (ordinal == end and offset)):
                raise StreamChangedError(
                    f"cursors: lane {lane} stands at document {ordinal} of {end}. The state is damaged, or past these epochs"
                )
    if position.tail is not None:
        handed_out = sum(rows for _, rows in position.tail)
        if min(min(pair) for pair in position.tail) < 0 or handed_out != position.rows - position.table_rows:
            raise StreamChangedError(f"tail: {position.tail} are not the rows after {position.table_rows}. The state is damaged")
    if position.residues is not None:
        for place, lane in np.ndindex(position.residues.shape):
            try:
                residue_spans(position.residues[place, lane], int(position.cursors[place, lane, 0]))
            except ValueError as error:
                raise StreamChangedError(f"residues: lane {lane} has {error}. The state is damaged") from error


# ---------------------------------------------------------------- parts


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> State:
    """The whole state of the local states of all ranks. Raises `StreamChangedError` where they do not belong together."""
    if not states:
        raise StreamChangedError("no local states to merge: give those of all ranks")
    for state in states:
        _check_keys(state)
    first = dict(states[0])
    for name in ("rows", *sorted(_KEYS - {"rows", "cursors", "residues", "counts", "part"})):
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
        "cursors": base64.b64encode(cursors.astype("<i8").tobytes()).decode("ascii"),
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
    return replace(position, cursors=cursors, residues=residues)


def stages_after(position: Position, seq_len: int, start_row: int, rows: int) -> Stages:
    """The stages of the tail after `rows` rows of the run."""
    return next_stages(position.tail or (), seq_len, start_row, rows)


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
    expected = num_components * num_lanes * 16
    if len(data) != expected:
        raise StreamChangedError(f"cursors: {len(data)} bytes where {num_lanes} lanes need {expected}. The state is damaged")
    cursors = np.frombuffer(data, "<i8").reshape(num_components, num_lanes, 2).astype(np.int64)
    return Position(
        rows=state["rows"],
        table_rows=state["table_rows"],
        cursors=cursors,
        residues=_decode_residues(state, (num_components, num_lanes)),
        counts=_read_counts(state["counts"]),
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


def _encode_residues(residues: Residues | None) -> str:
    """Base64 of a zlib stream of the sizes, little-endian int32, and then the bytes, of all lanes of all components."""
    if residues is None:
        return ""
    parts = residues.ravel().tolist()
    sizes = np.array([len(part) for part in parts], "<i4").tobytes()
    return base64.b64encode(zlib.compress(sizes + b"".join(parts), 6)).decode("ascii")


def _decode_residues(state: Mapping[str, Any], shape: tuple[int, int]) -> Residues | None:
    if state["packing"] != "best_fit":
        return None
    try:
        data = zlib.decompress(_decode("residues", state["residues"]))
        sizes = np.frombuffer(data, "<i4", shape[0] * shape[1])
        stops = np.cumsum(sizes) + sizes.nbytes
        if (sizes < 0).any() or (stops[-1] if len(stops) else 0) != len(data):
            raise ValueError("sizes that do not add up")
    except (zlib.error, ValueError) as error:
        raise StreamChangedError(f"residues: {error}. The state is damaged") from error
    residues = np.empty(shape, object)
    flat = residues.reshape(-1)
    for place, (size, stop) in enumerate(zip(sizes.tolist(), stops.tolist(), strict=True)):
        flat[place] = data[stop - size : stop]
    return residues
