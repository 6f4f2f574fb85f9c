"""Find the changes between a saved run and the recipe that continues it, and refuse unsafe ones.

fields of the state ─┬─► differ ─► same samples? no failed document? ─► changes
fields of the recipe ┘                                    accepted with `on_change`, or refused
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from cloudload.config import choices
from cloudload.errors import StreamChangedError
from cloudload.order import KNOWN_VERSIONS
from cloudload.run import state_codec, state_fields
from cloudload.run.recipe import Recipe
from cloudload.run.same_data import explain_data, has_same_samples
from cloudload.run.sources import read_sources
from cloudload.run.state import Saved
from cloudload.stats import FAILED
from cloudload.system import machine

logger = logging.getLogger("cloudload.resume")

Changes = dict[str, tuple[Any, Any]]
"""(saved value, found value) of each field that differs."""
FIELD_MEANINGS = {
    "data": "fingerprints of the shards' sizes, hashes and columns, by stream or corpus",
    "shards": "fingerprints of the shards' sample counts, on which the order depends",
    "tokenizer": "fingerprint",
    "token_ids": "fingerprint of the IDs of fixed texts",
    state_fields.ORDER_FIELD: "hash of the order of fixed shards, which NumPy's generators shuffle",
    "tokens_key": "the columns of token IDs and the dtypes of bytes, by stream",
    "bos_eos": "IDs before and after a document, by stream",
    "choose": "samples in an epoch, by stream or corpus",
    state_fields.MAX_EPOCHS_FIELD: "by stream",
}
"""The meaning of each field whose name does not say it."""
# a stream added at the end appends an item to each of these
_GROWING_FIELDS = (
    *("data", "shards", "bos_eos", "tokens_key", "choose", state_fields.MAX_EPOCHS_FIELD),
    *("num_canonical_nodes", "shuffle_block_size"),
)
# cursors stay valid if these fields change, unless a smaller number of epochs ends before them
_HARMLESS_FIELDS = ("open_rows", "min_tokens", "epochs", state_fields.MAX_EPOCHS_FIELD, "on_error")
CONTENT_FIELDS = (
    *("data", "tokenizer", "token_ids", "bos_eos", "text_key", "tokens_key", "transform"),
    "overflow",
)
"""The fields whose change invalidates cursors within documents. Other cursors stay valid."""
ACCEPTABLE_FIELDS = (*_HARMLESS_FIELDS, *CONTENT_FIELDS)
"""The fields whose change the user may accept with `on_change`."""
_NUMPY_OF = {False: f"a NumPy that shuffles like {KNOWN_VERSIONS}", True: "another NumPy"}
_ACCEPT, SAME = "accept", "same"
"""Values of `on_change`. "same" is only for data: it asserts that the samples are the same, so
cursors within documents stay valid."""


def _describe_field(name: str) -> str:
    reason = "documents were left out before the state" if name == "on_error" else ""
    meaning = FIELD_MEANINGS.get(name, reason)
    return f"{name} ({meaning})" if meaning else name


def check_on_change(on_change: Mapping[str, str]) -> None:
    """Raise `ValueError` for an invalid `on_change`."""
    for name, value in on_change.items():
        if value != _ACCEPT and (name, value) != ("data", SAME):
            options = "Use 'accept' or 'same'" if name == "data" else "Use 'accept'"
            raise ValueError(f"on_change[{name!r}] is {value!r}. {options}")
        if name not in ACCEPTABLE_FIELDS:
            raise ValueError(
                f"on_change: a change of {name!r} cannot be accepted, or does not need to be. You "
                f"can accept changes of {', '.join(sorted(ACCEPTABLE_FIELDS))}"
            )


def find_changes(saved: Saved, recipe: Recipe) -> Changes:
    """Find the fields in which a state and a recipe differ. Added streams are ignored."""
    found, grows = recipe.fields, len(recipe.components) > len(saved.position.cursors)
    changes = {}
    for name, value in saved.fields.items():
        if name == state_fields.SAMPLES_FIELD:
            continue  # compared only if `data` differs
        now = found[name]
        if grows and name in _GROWING_FIELDS and isinstance(value, str):
            now = ",".join(now.split(",")[: len(value.split(","))])
        if value != now:
            changes[name] = (value, found[name])
    if "data" in changes and has_same_samples(saved.fields, found):
        logger.info(
            "data: the shards differ from those of the saved run, but contain the same samples"
        )
        del changes["data"]
    if "tokenizer" in changes or not recipe.has_text:  # IDs must differ, or no text is encoded
        changes.pop("token_ids", None)
    if found["on_error"] == choices.SKIP or not saved.position.counts[:, FAILED].any():
        # "raise" ends the run at a bad document, so "skip" would have produced the same rows so far
        changes.pop("on_error", None)
    return changes


def _locate(saved: Saved, recipe: Recipe) -> Changes:
    """The (saved, found) locations of the data and tokenizer, by field, for an error.

    Empty if the saved locations are damaged.
    """
    try:
        before = read_sources(saved.sources)
    except StreamChangedError:
        return {}
    now = read_sources(recipe.sources)
    return {
        "data": (before.urls, now.urls),
        "shards": (before.urls, now.urls),
        "tokenizer": (before.tokenizer_name, now.tokenizer_name),
        "token_ids": (
            saved.tokenizer_backend,
            f"tokenizers {machine.package_version('tokenizers')}",
        ),
        state_fields.ORDER_FIELD: (
            _NUMPY_OF[bool(saved.fields[state_fields.ORDER_FIELD])],
            f"NumPy {np.__version__}",
        ),
    }


def refuse_changes(
    changes: Changes, on_change: Mapping[str, str], saved: Saved, recipe: Recipe
) -> None:
    """Raise a `StreamChangedError` that lists the changes that were not accepted, if any."""
    refused = {name: values for name, values in changes.items() if on_change.get(name) != _ACCEPT}
    if not refused:
        return
    locations = _locate(saved, recipe)
    lines = [
        f"  {_describe_field(name)}: "
        f"saved {_show_at(value, name, 0, locations)}, found {_show_at(now, name, 1, locations)}"
        for name, (value, now) in refused.items()
    ]
    advice = "Restore the saved values, or start a new run without this state"
    if refused.keys() <= set(ACCEPTABLE_FIELDS):
        accepted = dict.fromkeys(refused, _ACCEPT)
        advice += f", or accept the change with on_change={accepted}"
    lines += explain_data(set(refused), saved.fields, recipe.fields)
    raise StreamChangedError("\n".join(["the state does not match this loader:", *lines, advice]))


def _show_at(value: Any, name: str, side: int, locations: Changes) -> str:
    """Show a value and the location that it belongs to, if it has one."""
    return (
        f"{state_codec.show(value)} of {locations[name][side]}"
        if name in locations
        else state_codec.show(value)
    )


def check_moment(saved: Saved, changes: Changes) -> None:
    """Raise `StreamChangedError` if there are changes that the saved position does not allow."""
    position, names = saved.position, ", ".join(changes)
    ended = [
        name
        for name, stages in zip(saved.mixture.names, position.lanes.arrays.tails, strict=False)
        if stages
    ]
    if changes and ended and len(saved.mixture.names) == 1:
        raise StreamChangedError(
            f"{names}: cannot change in the tail of a finite run, or after its end. From row "
            f"{position.lanes_row:,} on, the rows contain the leftover tokens of all lanes, so no "
            "lane can continue after them. Restore the saved values, load a state that was saved "
            "before that row, or start a new run, which may have a different seed"
        )
    if changes and ended:
        raise StreamChangedError(
            f"{names}: cannot change once a stream of the mixture is in its tail or has ended "
            f"({', '.join(ended)}), because its lanes cannot continue. Restore the saved values, "
            "load an earlier state, or start a new run"
        )
    if changes and position.rows != position.table_rows:
        raise StreamChangedError(
            f"{names}: cannot change on a resume from this state. {explain_replay(saved)}"
        )


def explain_replay(saved: Saved) -> str:
    """Explain why a state's cursors are from an earlier row, and how to save a state without this
    gap."""
    position = saved.position
    return (
        f"The state is at row {position.rows:,}, but its cursors are from row "
        f"{position.table_rows:,}, because it was saved between two exchanges, or after seek and "
        "before the next batch. Load it with the saved values and exchange_every=1, take one "
        "batch, and save a new state"
    )
