"""The fields of a state, and the errors that a value is not a state or that a field is damaged.

    {"model": …, "loader": state}      the key under which the state is
    "checkpoint.pt"                    load the file first
    a StreamingDataset's state         load_streaming_state
    {"rows": -1, …}                    rows: -1 is not a whole number from 0 to …

Every state also has fields that do not describe a run, such as `version` and `cursors`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from cloudload.data import redact
from cloudload.errors import StreamChangedError

HELD_CONFIG_FIELDS = (
    *("packing", "open_rows", "overflow", "shuffle", "shuffle_algo", "seed", "epochs"),
    *("min_tokens", "max_tokens", "on_error"),
)
"""Fields of `RowsConfig` that a state stores as they are; `max_tokens` only if it is not None, and
`on_error` only if it is not "raise"."""
TOKENS_FIELD = "tokens_key"
"""The state field that describes columns of token IDs. A state has it only if a stream has one."""
CHAT_FIELD = "chat"
"""The state field that describes the chat templates of streams. A state has it only if a stream has
one."""
ENCODE_FIELD = "encode"
"""The state field with the names of the `encode` functions of streams. A state has it only if a
stream has one."""
FIM_FIELD = "fim"
"""The state field with the shares and the tokens of fill in the middle, by stream. A state has it
only if a stream has some."""
SELECT_FIELD = "select"
"""The state field with digests of the documents that `select` and `drop` leave, by stream. A state
has it only if a document is left out."""
STRIP_FIELD = "strip_tokens"
"""The state field with the IDs that are removed from the ends of documents, joined by commas. A
state has it only if there are any."""
ROW_BOS_FIELD = "row_bos"
"""The state field with the ID at the start of each row. A state has it only if there is one."""
HOOK_FIELD = "row_hook"
"""The state field with the name of the `row_hook`. A state has it only if there is one."""
MULTIPLE_FIELD = "pad_documents_to"
"""The state field with the number of tokens to a multiple of which documents are padded. A state
has it only if it is above 1."""
SAMPLES_FIELD = "samples"
"""The state field with fingerprints that cover the samples, but not the headers of their shards. A
state has it only if an index has `mds.hashes.SAMPLES_HASH`."""
MAX_EPOCHS_FIELD = "max_epochs"
"""The state field with the `max_epochs` of each stream. A state has it only if one is set."""
STREAM_SHARDS_FIELD = "stream_shards"
"""The field of a state with the number of shards of each stream. A state has it only if several
streams are read as one corpus, because its fingerprints do not show where each stream ends."""
ORDER_FIELD = "order_ids"
"""The state field with the hash of a fixed order. A state has it only if NumPy shuffles in another
way than all versions so far; see `order.order_cache`."""
FAIR_FIELD, FAIR = "fair_start", "sqrt"
"""The state field with the rule by which the first rows of `best_fit` are a fair sample of the
documents, and its only value; see `Packing.fair_from`. Older states, and other packings, have no
such field."""
PART_FIELD = "part"
"""The state field with the rank whose lanes an older state has, as "index/size"; "" for the lanes
of all ranks. A state has no such field, because all states have the lanes of all ranks."""
OPTIONAL_FIELDS = frozenset(
    {
        *(
            "token_ids",
            "max_tokens",
            *(ROW_BOS_FIELD, MULTIPLE_FIELD, HOOK_FIELD),
            "on_error",
            "stopping",
            ORDER_FIELD,
            FAIR_FIELD,
        ),
        *(SAMPLES_FIELD, STREAM_SHARDS_FIELD, TOKENS_FIELD, CHAT_FIELD, ENCODE_FIELD, FIM_FIELD),
        *(STRIP_FIELD, MAX_EPOCHS_FIELD, SELECT_FIELD),
    }
)
"""Fields that a state omits if they are empty or have their default value. They are newer than the
first states, or apply to only some data."""
STATE_KEYS = frozenset({"version", "cursors", "table_rows"})
"""Keys by which a state is recognized."""
_STREAMING_KEYS = frozenset({"sample_in_epoch", "num_canonical_nodes", "shuffle_seed"})
_MOST_LEVELS = 5
SHOWN_CHARACTERS = 200


def explain_not_a_state(value: Any) -> str:
    """Describe a value that is not a state, and say what to pass to `load_state_dict` instead."""
    if isinstance(value, str | os.PathLike):
        return _explain_text(os.fspath(value))
    if isinstance(value, bytes | bytearray):
        return (
            f"this is {type(value).__name__}, not a state. Decode it, for instance with json.loads"
        )
    if isinstance(value, Mapping) and not value:
        return (
            "the state is empty. Either no state was saved, or another rank's checkpoint has it. "
            "Pass what loader.state_dict() returned"
        )
    if is_state(value):
        return "this is a state"
    path = find_nested(value, is_state)
    if path is not None:
        return f"this is a whole checkpoint. Pass only the loader's state, which is at {path}"
    if find_nested(value, _is_streaming_state) is not None:
        return (
            "this is the state of a StreamingDataset, or a Composer checkpoint that contains one. "
            "Use loader.load_streaming_state"
        )
    if isinstance(value, Mapping):
        names = ", ".join(map(str, list(value)[:8]))
        return (
            "this is not a cloudload state, because it has no version. Its keys are "
            f"{redact(names)[:200]}. Pass what loader.state_dict() returned"
        )
    return (
        f"this {type(value).__name__} is not a cloudload state. Pass what loader.state_dict() "
        "returned"
    )


def is_state(value: Any) -> bool:
    """Whether a value is a state, judging by its keys."""
    return isinstance(value, Mapping) and value.keys() >= STATE_KEYS


def _is_streaming_state(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= _STREAMING_KEYS


def find_nested(value: Any, is_wanted: Any, levels: int = _MOST_LEVELS) -> str | None:
    """Find the path to a matching value in nested mappings and lists, such as `['loader']`.

    Returns "" if `value` itself matches, and None if nothing matches within `levels` levels.
    """
    if is_wanted(value):
        return ""
    if isinstance(value, str) and "table_rows" in value:
        return " as JSON text (json.loads)" if is_wanted(_load_json(value)) else None
    if not levels or not isinstance(value, Mapping | list | tuple):
        return None
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in items:
        if (path := find_nested(item, is_wanted, levels - 1)) is not None:
            return f"[{key!r:.100}]{path}"
    return None


def _explain_text(text: str) -> str:
    if is_state(_load_json(text)):
        return "this is a state as JSON text. Pass json.loads(text)"
    shown = redact(text[:200])
    if os.path.exists(text) or "\n" not in text:
        return (
            f"{shown!r} is a path or a name, not a state. Load the file first, and pass the state "
            "in it, for instance torch.load(path, weights_only=True)['loader'] or "
            "json.load(open(path))"
        )
    return f"{shown!r} is text, not a state. Pass what loader.state_dict() returned"


def _load_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def show(value: object) -> str:
    """The `repr` of a value for a message, shortened to about `SHOWN_CHARACTERS` characters."""
    shown = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "…"


def damaged(name: str, what: str) -> StreamChangedError:
    """The error for a field that no loader saved."""
    return StreamChangedError(f"{name}: {what}. The state is damaged. Load an earlier one")
