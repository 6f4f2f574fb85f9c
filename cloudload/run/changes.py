"""Compare a saved run with the recipe that continues it, and refuse unsafe changes.

    no effect on rows        world, workers, batch_size, …       they are not part of the recipe
                             shards written again                if their samples are the same
                             shards appended                     left out by `resume_recipe`
    from the next row on     shares of streams, streams added    the mixture keeps earlier rows
                             stopping
    different rows           seq_len                             cursors count tokens; residues are
                                                                 packed again
    after a bad document     on_error="skip" after "raise"       no document has failed so far
    refused                  other fields of the recipe, listed with both values; the user may
                             accept a change of some of them with `on_change`

Three fields describe the data:

    shards     sample counts of the shards         the order depends on them
    data       sizes, hashes and columns           includes each shard's header, which names its
                                                   compression
    samples    hashes of the samples, columns      excludes the headers; "" without hashes

Two streams or corpora have the same samples if their `data` is equal, or their `samples` are.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.config import Stream, choices
from cloudload.data import redact
from cloudload.errors import StreamChangedError
from cloudload.order import KNOWN_VERSIONS
from cloudload.run import state_fields
from cloudload.run.recipe import Recipe
from cloudload.run.saved import Saved
from cloudload.run.sources import read_sources
from cloudload.run.state_fields import show
from cloudload.stats import FAILED
from cloudload.system import machine

logger = logging.getLogger("cloudload.resume")

Changes = dict[str, tuple[Any, Any]]
"""(saved value, found value) of each field that differs."""
_Sides = tuple[Sequence[Stream], Sequence[Stream]]
"""Streams of the saved run, and of the loader."""
FIELD_MEANINGS = {
    "data": "fingerprints of the shards' sizes, hashes and columns, by stream or corpus",
    "shards": "fingerprints of the shards' sample counts, on which the order depends",
    "tokenizer": "fingerprint",
    "token_ids": "fingerprint of the IDs of fixed texts",
    state_fields.ORDER_FIELD: "hash of the order of fixed shards, which NumPy's generators shuffle",
    "tokens_key": "the columns of token IDs and the dtypes of bytes, by stream",
    state_fields.CHAT_FIELD: "the chat templates, and the most tokens of a document, by stream",
    state_fields.MULTIPLE_FIELD: "the size of a document is a multiple of it",
    state_fields.ENCODE_FIELD: "the functions that make tokens, by stream",
    state_fields.FIM_FIELD: "shares and IDs of fill in the middle, by stream",
    "row_bos": "ID at the start of each row",
    state_fields.SELECT_FIELD: "digests of the documents that are read, by stream",
    "strip_tokens": "IDs that are removed from the ends of documents",
    "bos_eos": "IDs before and after a document, by stream",
    "choose": "samples in an epoch, by stream or corpus",
    state_fields.MAX_EPOCHS_FIELD: "by stream",
}
"""The meaning of each field whose name does not say it."""
# a stream added at the end appends an item to each of these
_GROWING_FIELDS = (
    *("data", "shards", "bos_eos", "tokens_key", "choose", state_fields.MAX_EPOCHS_FIELD),
    *(
        state_fields.CHAT_FIELD,
        state_fields.ENCODE_FIELD,
        state_fields.FIM_FIELD,
        state_fields.SELECT_FIELD,
        "num_canonical_nodes",
        "shuffle_block_size",
    ),
)
# cursors stay valid if these fields change, unless a smaller number of epochs ends before them
_HARMLESS_FIELDS = (
    *("open_rows", "min_tokens", "max_tokens", "epochs", state_fields.MAX_EPOCHS_FIELD),
    *("on_error", state_fields.HOOK_FIELD, state_fields.SELECT_FIELD),
)
CONTENT_FIELDS = (
    *("data", "tokenizer", "token_ids", "bos_eos", "text_key", "tokens_key", "strip_tokens"),
    *("transform", state_fields.CHAT_FIELD, state_fields.ENCODE_FIELD, state_fields.FIM_FIELD),
    *(state_fields.MULTIPLE_FIELD, "overflow"),
)
"""The fields whose change invalidates cursors within documents. Other cursors stay valid."""
ACCEPTABLE_FIELDS = (*_HARMLESS_FIELDS, *CONTENT_FIELDS)
"""The fields whose change the user may accept with `on_change`."""
_NUMPY_OF = {False: f"a NumPy that shuffles like {KNOWN_VERSIONS}", True: "another NumPy"}
_DATA_FIELDS = ("data", "shards", "choose")
_MOST_NAMED = 4
"""The most streams that an error names."""
_ACCEPT, _SAME = "accept", "same"
"""Values of `on_change`. "same" is only for data: it asserts that the samples are the same, so
cursors within documents stay valid."""


def accept_changes(saved: Saved, recipe: Recipe, on_change: Mapping[str, str]) -> Changes:
    """Return the changes with which a run continues, all of which the user accepted.

    The recipe must be that of `resume_recipe`. Raises `StreamChangedError` if changes are not
    accepted (the error lists all of them), or not possible at the saved position. Raises
    `ValueError` for an invalid `on_change`.
    """
    check_on_change(on_change)
    changes = find_changes(saved, recipe)
    if on_change.get("data") == _SAME and "data" in changes:
        logger.warning(
            "data: the shards differ. The run continues without comparing their samples, because "
            "of on_change={'data': 'same'}"
        )
        del changes["data"]
    refuse_changes(changes, on_change, saved, recipe)
    check_moment(saved, recipe, changes)
    return changes


def check_on_change(on_change: Mapping[str, str]) -> None:
    """Raise `ValueError` for an invalid `on_change`."""
    for name, value in on_change.items():
        if value != _ACCEPT and (name, value) != ("data", _SAME):
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
    of_known = recipe.source_fields(len(saved.position.counts)) if grows else {}
    changes = {}
    for name, value in saved.fields.items():
        if name == state_fields.SAMPLES_FIELD:
            continue  # compared only if `data` differs
        now = of_known.get(name, found[name])
        if grows and name in _GROWING_FIELDS and isinstance(value, str):
            now = ",".join(now.split(",")[: len(value.split(","))])
        if value != now:
            changes[name] = (value, found[name])
    if "data" in changes and has_same_samples(saved.fields, found):
        logger.info(
            "data: the shards differ from those of the saved run, but contain the same samples"
        )
        del changes["data"]
    if "tokenizer" in changes or not recipe.tokenizes:  # IDs must differ, or no text is encoded
        changes.pop("token_ids", None)
    if found["on_error"] == choices.SKIP or not saved.position.counts[:, FAILED].any():
        # "raise" ends the run at a bad document, so "skip" would have produced the same rows so far
        changes.pop("on_error", None)
    return changes


def has_same_samples(saved: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a state's data and a loader's data are known to have the same samples.

    `saved` and `found` are the fields of the state and the loader. Added streams are ignored.
    """
    return all(before and before == now for before, now in _list_differing(saved, found))


def refuse_changes(
    changes: Changes, on_change: Mapping[str, str], saved: Saved, recipe: Recipe
) -> None:
    """Raise a `StreamChangedError` that lists the changes that were not accepted, if any."""
    refused = {name: values for name, values in changes.items() if on_change.get(name) != _ACCEPT}
    if not refused:
        return
    sides = _find_changed_streams(saved, recipe)
    locations = _locate(saved, recipe, sides) if sides else {}
    lines = [
        f"  {_describe_field(name)}: "
        f"saved {_show_at(value, name, 0, locations)}, found {_show_at(now, name, 1, locations)}"
        for name, values in refused.items()
        for value, now in [_take_differing(*values) if name in _DATA_FIELDS else values]
    ]
    advice = "Restore the saved values, or start a new run without this state"
    if refused.keys() <= set(ACCEPTABLE_FIELDS):
        accepted = dict.fromkeys(refused, _ACCEPT)
        advice += f", or accept the change with on_change={accepted}"
    lines += explain_data(set(refused), saved.fields, recipe.fields)
    which = _describe_changed(*sides, recipe) if sides and "data" in refused else ""
    header = f"the state does not match this loader{which}:"
    raise StreamChangedError("\n".join([header, *lines, advice]))


def _describe_field(name: str) -> str:
    reason = "documents were left out before the state" if name == "on_error" else ""
    meaning = FIELD_MEANINGS.get(name, reason)
    return f"{name} ({meaning})" if meaning else name


def _show_at(value: Any, name: str, side: int, locations: Changes) -> str:
    """Show a value and the location that it belongs to, if it has one."""
    return f"{show(value)} of {locations[name][side]}" if name in locations else show(value)


def _find_changed_streams(saved: Saved, recipe: Recipe) -> _Sides | None:
    """The streams whose data differs, as saved and as found; all if it is unknown which differ.

    Returns None if the saved locations are damaged.
    """
    try:
        before, now = (read_sources(each.sources).streams for each in (saved, recipe))
    except StreamChangedError:
        return None
    if recipe.config.is_mixed:
        data, data_now = (str(each["data"]).split(",") for each in (saved.fields, recipe.fields))
        keys = list[object](enumerate(data))
        keys_now = list[object](enumerate(data_now[: len(data)]))  # ignore added streams
    else:
        # a state has one fingerprint of a corpus, but the number of shards of each stream
        shards = saved.stream_shards or [0] * len(before)
        shards_now = [len(each.shards) if any(shards) else 0 for each in recipe.corpus.datasets]
        keys = list(zip(map(_get_url, before), shards, strict=False))
        keys_now = list(zip(map(_get_url, now), shards_now, strict=False))
    old = [each for each, key in zip(before, keys, strict=False) if key not in keys_now]
    new = [each for each, key in zip(now, keys_now, strict=False) if key not in keys]
    return (old, new) if old or new else (before, now)


def _take_differing(before: Any, now: Any) -> tuple[Any, Any]:
    """Of the items of each stream or corpus, take those that differ, except for added streams."""
    pairs = zip(str(before).split(","), str(now).split(","), strict=False)
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    taken = tuple(",".join(items) for items in zip(*differing, strict=True))
    return (taken[0], taken[1]) if taken else (before, now)


def _describe_changed(before: Sequence[Stream], now: Sequence[Stream], recipe: Recipe) -> str:
    """Name the streams whose data differs, if the loader has several, and if it is known."""
    if len(recipe.labels) == 1:
        return ""
    if len(now) == len(recipe.labels):
        return f", because one or more of its {len(now):,} datasets have changed"
    if _list_urls(before) == _list_urls(now):
        return f", because the data of {_list_names(now)} has changed"
    if not now:
        return f", which does not read {_list_names(before)}"
    instead = f" instead of {_list_names(before)}" if before else ""
    return f", which {'' if before else 'also '}reads {_list_names(now)}{instead}"


def _list_names(streams: Sequence[Stream]) -> str:
    return _join_some(
        [f"{each.name} ({_get_url(each)})" if each.name else _get_url(each) for each in streams]
    )


def _list_urls(streams: Sequence[Stream]) -> str:
    return _join_some(list(map(_get_url, streams)))


def _get_url(stream: Stream) -> str:
    return redact(stream.url)


def _join_some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _locate(saved: Saved, recipe: Recipe, sides: _Sides) -> Changes:
    """The (saved, found) locations of the data and tokenizer, by field, for an error."""
    before, now = read_sources(saved.sources), read_sources(recipe.sources)
    if not recipe.config.is_mixed:  # the fields are of all streams
        sides = before.streams, now.streams
    urls = _list_urls(sides[0]), _list_urls(sides[1])
    return {
        "data": urls,
        "shards": urls,
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


def explain_data(names: set[str], saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Explain, in sentences for an error, how the loader's data differs from the saved data.

    `names` are the fields that differ. The data may be the same documents, written again.
    """
    if "shards" in names and "choose" in names:
        return [_describe_other_data(saved, found)]
    if "shards" in names:
        return [
            "The samples are split into different shards, and the order of documents depends on "
            "the number of samples in each shard. A different compression, hash algorithm, or size "
            "limit can cause this, because a shard's header counts toward its size"
        ]
    if "data" not in names:
        return []
    pairs = _list_differing(saved, found)
    if any(before and now and before != now for before, now in pairs):
        return ["Each shard has as many samples as before, but the samples or columns differ"]
    lacking = "index" if all(before for before, _ in pairs) else "state"
    return [
        "Each shard has as many samples as before. cloudload cannot tell whether the samples are "
        f"the same, because the {lacking} has no hashes of them. If they are the same, for example "
        "because only the compression changed, continue with on_change={'data': 'same'}, which "
        "drops no tokens"
    ]


def _describe_other_data(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    before, now = (str(fields["choose"]).split(",") for fields in (saved, found))
    if str(found["shards"]).count(",") > str(saved["shards"]).count(","):
        now = now[: len(before)]  # ignore added streams
    difference = ""
    if all(map(str.isdecimal, before)) and (old := sum(map(int, before))) != sum(map(int, now)):
        difference = f", with {sum(map(int, now)):,} samples instead of {old:,}"
    return f"This is a different dataset{difference}. Check that its URL is correct"


def _list_differing(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (saved, found) `samples` fingerprints of each stream or corpus whose `data` differs."""
    columns = [
        str(fields.get(name, "")).split(",")
        for fields in (saved, found)
        for name in ("data", state_fields.SAMPLES_FIELD)
    ]
    rows = itertools.zip_longest(*columns, fillvalue="")
    return [
        (samples, samples_now)
        for data, samples, data_now, samples_now in itertools.islice(rows, len(columns[0]))
        if data != data_now
    ]


def check_moment(saved: Saved, recipe: Recipe, changes: Changes) -> None:
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
    seq_len = recipe.config.seq_len
    if position.rows != position.table_rows and (changes or saved.seq_len != seq_len):
        seq_lens = f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, but seq_len"
        raise StreamChangedError(
            f"{names + ':' if changes else seq_lens} cannot change on a resume from this state. "
            f"The state is at row {position.rows:,}, but its cursors are from row "
            f"{position.table_rows:,}, because it was saved between two exchanges, or after seek "
            "and before the next batch. Load it with the saved values and exchange_every=1, take "
            "one batch, and save a new state"
        )
