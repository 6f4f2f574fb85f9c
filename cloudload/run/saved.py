"""Decode a state: check its fields, and parse them without a recipe.

    state ─► all fields, of this version, of plain types? ─► Saved    position, layout, mixture,
                                                                      and the fields to compare

Treat a state as untrusted. A `StreamChangedError` names the first field that is damaged. Arrays and
lists are text, which `lane_texts` (cursors, sizes, residues) and `state` encode:

    cursors      [[[7, 120], [6, 0], …]]     base64 of int32 or int64
    sizes        [[900, 0, …]]               base64 of uint16, uint32 or uint64
    residues     [[b"…", b"", …]]            base64 of zlib of planes of 16 lanes, joined by "."
    counts       [[512, 3, 0, 0, 0, 0]]      JSON; up to two more numbers by stream
    numbers      (64, 8)                     "64,8"
    pairs        ((512, 100), (1024, 3))     "512:100,1024:3"
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.config import MAX_LANES, choices
from cloudload.errors import StreamChangedError
from cloudload.order import Layout, Mixture
from cloudload.rows import Stages, split_residues, tables
from cloudload.run import state_fields
from cloudload.run.lane_texts import CHUNK_END, RESIDUES_PER_CHUNK, SIZE_WIDTHS
from cloudload.run.position import (
    DATA_START,
    MOST_ROWS,
    LaneArrays,
    LaneLog,
    Origin,
    Position,
    Residues,
)
from cloudload.run.state_fields import (
    SHOWN_CHARACTERS,
    STATE_KEYS,
    damaged,
    explain_not_a_state,
    find_nested,
    is_state,
    show,
)
from cloudload.stats import COUNTS, FAILED
from cloudload.system import Ints

VERSION = 3
"""The version of the format of states."""
_COUNTED = ("rows", "table_rows", "batches", "global_batch")
_MOST = {
    **dict.fromkeys(("rows", "table_rows", "batches"), 2 * MOST_ROWS),
    **dict.fromkeys(("global_batch", "seq_len"), 1 << 31),
    "num_lanes": MAX_LANES,
}
"""The largest value of each field that is a whole number."""
_COMPARED_FIELDS = (
    *(*state_fields.HELD_CONFIG_FIELDS, "text_key", "transform", "num_lanes"),
    *("num_canonical_nodes", "shuffle_block_size", "choose", "shards", "data", "tokenizer"),
    *("bos_eos", "token_ids"),
    *(state_fields.SAMPLES_FIELD, state_fields.ORDER_FIELD, state_fields.TOKENS_FIELD),
    *(state_fields.CHAT_FIELD, state_fields.ENCODE_FIELD, state_fields.FIM_FIELD),
    *(state_fields.STRIP_FIELD, state_fields.SELECT_FIELD),
    *(state_fields.ROW_BOS_FIELD, state_fields.MULTIPLE_FIELD, state_fields.MAX_EPOCHS_FIELD),
    state_fields.HOOK_FIELD,
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

_MOST_COUNTED = 1 << 62
# ordinals must fit where they are packed: int32 in the residues of best_fit; with concat, int64
# together with a lane
_MOST_ORDINAL = {"best_fit": 1 << 30}
_MOST_ORDINAL_ELSE, _MOST_OFFSET = 1 << 38, 1 << 40
_MOST_EPOCHS = 1 << 20
_MOST_RESIDUE_BYTES, _BYTES_PER_SPAN = 1 << 30, 12


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
    strip_tokens: tuple[int, ...] = ()
    """The IDs that are removed from the ends of documents."""
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
    strip_tokens, stream_shards = (
        read_numbers(name, state[name]) if name in state else ()
        for name in (state_fields.STRIP_FIELD, state_fields.STREAM_SHARDS_FIELD)
    )
    return Saved(
        position=position,
        layout=layout,
        mixture=mixture,
        seq_len=state["seq_len"],
        fields=fields,
        sources=state["sources"],
        tokenizer_backend=state["tokenizer_backend"],
        stopping=state.get("stopping", choices.ALL),
        strip_tokens=strip_tokens,
        stream_shards=stream_shards,
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
        "max_tokens": None,
        state_fields.ROW_BOS_FIELD: None,
        state_fields.MULTIPLE_FIELD: None,
        state_fields.HOOK_FIELD: None,
        "on_error": choices.RAISE,
        state_fields.ORDER_FIELD: "",
        state_fields.TOKENS_FIELD: of_no_stream,
        state_fields.CHAT_FIELD: of_no_stream,
        state_fields.ENCODE_FIELD: of_no_stream,
        state_fields.FIM_FIELD: of_no_stream,
        state_fields.STRIP_FIELD: "",
        state_fields.SELECT_FIELD: of_no_stream,
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


# ---------------------------------------------------------------- position


def read_position(state: Mapping[str, Any]) -> Position:
    """Decode the position of a state.

    Raises `StreamChangedError` that names the field if one is damaged.
    """
    rows, table_rows = state["rows"], state["table_rows"]
    for name in ("table_rows", "batches"):  # a batch has at least one row
        if state[name] > rows:
            raise damaged(name, f"{state[name]} is greater than rows, which is {rows}")
    skipped = read_pairs("skipped", state["skipped"])
    bounds = [0, *(row for pair in skipped for row in pair), rows]
    if any(row > after for row, after in itertools.pairwise(bounds)):
        raise damaged(
            "skipped",
            f"{show(state['skipped'])} are not ascending ranges of rows before {rows}",
        )
    origin = [Origin(*pair) for pair in read_pairs("origin", state.get("origin", ""))]
    if len(origin) > 1:
        raise damaged("origin", f"{show(state['origin'])} is not a single pair epoch:num_read")
    if any(epoch > _MOST_EPOCHS for epoch, _ in origin):
        raise damaged("origin", f"{show(state['origin'])} is beyond any real run")
    cursors = read_cursors(state)
    counts, tails = read_counts(state["counts"]), read_tails(state, len(cursors))
    residues = decode_residues(state, cursors)
    return Position(
        rows=rows,
        table_rows=rows if state["tail"] else table_rows,
        lanes=LaneLog(LaneArrays(cursors, residues, counts, tails)),
        skipped=skipped,
        batches=state["batches"],
        global_batch=state["global_batch"],
        origin=origin[0] if origin else DATA_START,
    )


def read_cursors(state: Mapping[str, Any]) -> Ints:
    """Decode the cursors of a state: int64 [components, lanes, 3].

    Raises `StreamChangedError` if they are damaged.
    """
    data, num_lanes = _decode("cursors", state["cursors"]), state["num_lanes"]
    num_components = len(read_numbers("num_canonical_nodes", state["num_canonical_nodes"]))
    expected = num_components * num_lanes * 8
    if len(data) not in (expected, 2 * expected):
        raise damaged(
            "cursors",
            f"they have {len(data)} bytes, but {num_components * num_lanes} cursors need "
            f"{expected} or {2 * expected}",
        )
    values = np.frombuffer(data, "<i4" if len(data) == expected else "<i8")
    cursors = values.reshape(num_components, num_lanes, 2).astype(np.int64)
    most = [_MOST_ORDINAL.get(state["packing"], _MOST_ORDINAL_ELSE), _MOST_OFFSET]
    if len(out := np.argwhere(cursors > most)):
        component, lane, _ = out[0].tolist()
        raise damaged(
            "cursors",
            f"lane {lane} is at {cursors[component, lane].tolist()}, which is beyond any real run",
        )
    if len(lacking := np.argwhere(cursors < 0)):
        raise damaged("cursors", f"lane {lacking[0, 1]} has no cursor")
    sizes = read_sizes(state, cursors.shape[:2])
    return np.concatenate([cursors, sizes[..., None]], axis=2)


def read_sizes(state: Mapping[str, Any], shape: tuple[int, ...]) -> Ints:
    """Decode the size, in tokens, of the document that each cursor is in; 0 if it is not known.

    Returns int64 `shape`, which is (components, lanes). Raises `StreamChangedError` if the sizes
    are damaged.
    """
    if not state.get("document_sizes"):
        return np.zeros(shape, np.int64)
    data, count = _decode("document_sizes", state["document_sizes"]), math.prod(shape)
    widths = {count * int(width[-1]): width for width in SIZE_WIDTHS}
    if len(data) not in widths:
        raise damaged(
            "document_sizes",
            f"they have {len(data)} bytes, but the only possible sizes are {list(widths)}",
        )
    sizes = np.frombuffer(data, widths[len(data)])
    if (sizes > _MOST_OFFSET).any():
        raise damaged("document_sizes", f"{sizes.max():,} tokens are beyond any real document")
    return sizes.reshape(shape).astype(np.int64)


def read_counts(text: Any) -> Ints:
    """Decode the statistics of a state: int64 [streams, counts], with columns `stats.COUNTS`."""
    try:
        counts = np.array(json.loads(text))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise damaged("counts", str(error)[:SHOWN_CHARACTERS]) from error
    if counts.ndim != 2 or not FAILED <= counts.shape[-1] <= len(COUNTS):
        raise damaged(
            "counts",
            f"their shape is {counts.shape}, but each stream has {FAILED} to {len(COUNTS)} numbers",
        )
    if counts.dtype != np.int64 or counts.min() < 0 or counts.max() > _MOST_COUNTED:
        raise damaged(
            "counts",
            f"{show(text)} has values that are not whole numbers from 0 to {_MOST_COUNTED:,}",
        )
    return np.pad(counts, ((0, 0), (0, len(COUNTS) - counts.shape[1])))


# ---------------------------------------------------------------- numbers, pairs, and bytes


def read_numbers(name: str, text: Any) -> tuple[int, ...]:
    try:
        return tuple(map(_read_number, text.split(",")))
    except (AttributeError, ValueError) as error:
        raise damaged(
            name, f"{show(text)} is not a list of whole numbers of up to 18 digits"
        ) from error


def _read_number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("not a number")
    return int(text)


def read_pairs(name: str, text: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [tuple(map(_read_number, pair.split(":"))) for pair in text.split(",") if pair]
        return tuple((one, other) for one, other in pairs)
    except (AttributeError, ValueError) as error:
        raise damaged(
            name, f"{show(text)} is not a list of pairs of whole numbers of up to 18 digits"
        ) from error


def read_tails(state: Mapping[str, Any], num_components: int) -> tuple[Stages, ...]:
    """Decode the stages of each component's tail; empty if the state has none.

    Raises `StreamChangedError` if they are damaged, or do not cover the rows since the lanes ended.
    """
    if stages := read_pairs("tail", state["tail"]):
        first, rows = state["table_rows"], state["rows"]
        if sum(count for _, count in stages) != rows - first or num_components > 1:
            raise damaged(
                "tail", f"the stages {stages} (seq_len, rows) do not cover rows {first} to {rows}"
            )
        return (stages,)
    if not (text := state.get("stream_tails", "")):
        return ()
    parts = text.split(";") if isinstance(text, str) else [text]
    if len(parts) != num_components:
        raise damaged(
            "stream_tails", f"{show(text)} has {len(parts)} tails for {num_components} streams"
        )
    return tuple(read_pairs("stream_tails", part) for part in parts)


def _decode(name: str, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise damaged(name, f"they are not base64 ({error})") from error


def decode_residues(state: Mapping[str, Any], cursors: Ints) -> Residues | None:
    """Decode a state's residues to an object array of bytes, [components, lanes].

    The residues are encoded in chunks of lanes; older states have a single chunk. Returns None if
    the packing has no residue. Raises `StreamChangedError` if the residues are damaged.
    """
    if state["packing"] != "best_fit":
        if state["residues"] != "":
            raise damaged("residues", f"packing {show(state['packing'])} has no residues")
        return None
    shape, ordinals = cursors.shape[:2], cursors[..., tables.CURSOR_ORDINAL].ravel()
    text = state["residues"]
    chunks = text.split(CHUNK_END) if isinstance(text, str) else [text]
    step = RESIDUES_PER_CHUNK if len(chunks) > 1 else len(ordinals)
    if len(chunks) != -(-len(ordinals) // step):
        raise damaged(
            "residues",
            f"they have {len(chunks)} chunks, which is wrong for {len(ordinals):,} lanes",
        )
    found: list[bytes] = []
    for index, chunk in enumerate(chunks):
        found += _decode_chunk(chunk, ordinals[index * step : (index + 1) * step])
    residues = np.empty(shape, object)
    residues.reshape(-1)[:] = found
    return residues


def _decode_chunk(text: Any, ordinals: Ints) -> list[bytes]:
    """Decode a chunk of residues. `ordinals` (int64 [lanes]) are those of its lanes' cursors."""
    num_lanes = len(ordinals)
    try:
        planes = _unpack(_decode("residues", text), _most_residue_bytes(ordinals))
        if len(planes) % 4 or len(planes) < 4 * num_lanes:
            raise ValueError(
                f"they unpack to {len(planes):,} bytes, which is not a multiple of 4, or is less "
                f"than 4 for each of {num_lanes:,} lanes"
            )
        data = np.frombuffer(planes, np.uint8).reshape(4, -1).T.tobytes()
        sizes = np.frombuffer(data, "<i4", num_lanes)
        if (sizes < 0).any() or sizes.nbytes + int(sizes.sum(dtype=np.int64)) != len(data):
            raise ValueError(f"their sizes do not add up to the {len(data):,} bytes in them")
    except (zlib.error, ValueError) as error:
        raise damaged("residues", str(error)) from error
    return split_residues(data[sizes.nbytes :], sizes.tolist())


def _most_residue_bytes(ordinals: Ints) -> int:
    """The most bytes that a chunk of residues and their sizes may unpack to.

    A larger chunk is damaged or malicious. The limit allows one span for each document before a
    cursor, each span in a separate open row, but at most `_MOST_RESIDUE_BYTES`.
    """
    num_lanes, spans = ordinals.size, int(np.maximum(ordinals, 0).sum())
    return min(_MOST_RESIDUE_BYTES, 8 * num_lanes + spans * (4 + _BYTES_PER_SPAN))


def _unpack(data: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj()
    unpacked = decoder.decompress(data, most + 1)
    if len(unpacked) > most:
        raise ValueError(
            f"they unpack to more than {most:,} bytes, the most that is allowed for these cursors"
        )
    if not decoder.eof or decoder.unused_data:
        raise ValueError("they are not one complete zlib stream")
    return unpacked
