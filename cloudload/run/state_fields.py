"""The fields of a state that describe a run, beside those that every state has."""

from __future__ import annotations

HELD_CONFIG_FIELDS = (
    *("packing", "open_rows", "overflow", "shuffle", "shuffle_algo", "seed", "epochs", "text_key"),
    *("min_tokens", "on_error"),
)
"""Fields of `RowsConfig` that a state stores as they are; `on_error` only if it is not "raise"."""
TOKENS_FIELD = "tokens_key"
"""The state field that describes columns of token IDs. A state has it only if a stream has one."""
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
        *("token_ids", "on_error", "stopping", ORDER_FIELD, FAIR_FIELD),
        *(SAMPLES_FIELD, STREAM_SHARDS_FIELD, TOKENS_FIELD, MAX_EPOCHS_FIELD),
    }
)
"""Fields that a state omits if they are empty or have their default value. They are newer than the
first states, or apply to only some data."""
