"""Compute the position at which a loader continues a saved run, and refuse unsafe changes.

no effect on rows        world, workers, batch_size, …       they are not part of the recipe
                         shards written again                if their samples are the same; see
                                                             `same_data`
from the next row on     shares of streams, streams added    the mixture keeps earlier rows
                         stopping
different rows           seq_len                             cursors count tokens; residues are
                                                             packed again
from a bad document on    on_error="skip" after "raise"       no document has failed so far
refused                  other fields of the recipe, listed with both values; the user may accept
                         a change of some of them with `on_change`
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.config.choices import SKIP
from cloudload.errors import StreamChangedError
from cloudload.order.lanes import Lanes
from cloudload.order.mixture import Mixture
from cloudload.packing.residue import residue_spans, unpack_residue
from cloudload.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import MAX_EPOCHS_FIELD, SAMPLES_FIELD, TOKENS_FIELD, Recipe
from cloudload.run.same_data import explain_data, has_same_samples
from cloudload.run.sources import read_sources
from cloudload.run.state import Saved
from cloudload.run.state_codec import show
from cloudload.stats import FAILED

logger = logging.getLogger(__name__)

Changes = dict[str, tuple[Any, Any]]
"""(saved value, found value) of each field that differs."""
_DESCRIPTIONS = {
    "data": "data (fingerprints of the shards' sizes, hashes and columns, by stream or corpus)",
    "shards": "shards (fingerprints of the shards' sample counts, on which the order depends)",
    "tokenizer": "tokenizer (fingerprint)",
    "token_ids": "token_ids (fingerprint of the IDs of fixed texts)",
    "tokens_key": "tokens_key (the columns of token IDs and the dtypes of bytes, by stream)",
    "bos_eos": "bos_eos (the IDs before and after each document, by stream)",
    "choose": "choose (samples in an epoch, by stream or corpus)",
    MAX_EPOCHS_FIELD: "max_epochs (by stream)",
    "on_error": "on_error (documents were left out before the state)",
}
# a stream added at the end appends an item to each of these
_GROWING_FIELDS = (
    *("data", "shards", "bos_eos", "tokens_key", "choose", MAX_EPOCHS_FIELD),
    *("num_canonical_nodes", "shuffle_block_size"),
)
# cursors stay valid if these change, unless they are past the end of fewer epochs
_HARMLESS_FIELDS = ("open_rows", "min_tokens", "epochs", MAX_EPOCHS_FIELD, "on_error")
# only cursors between documents stay valid if these change
_CONTENT_FIELDS = (
    *("data", "tokenizer", "token_ids", "bos_eos", "text_key", "tokens_key", "transform"),
    "overflow",
)
ACCEPTABLE_FIELDS = (*_HARMLESS_FIELDS, *_CONTENT_FIELDS)
"""The fields whose change the user may accept with `on_change`."""
# values of `on_change`. "same" is only for data: the user says that the samples are the same, so
# cursors within documents stay valid
_ACCEPT, _SAME = "accept", "same"


def keep_framing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe with the saved bos and eos if the run and the loader asked for "auto".

    Otherwise a state would be refused after a change of the tokenizer's config file, or of the
    rules for "auto".
    """
    texts = str(saved.fields["bos_eos"]).split(",")
    if texts == recipe.fields["bos_eos"].split(",")[: len(texts)]:
        return recipe
    columns = str(saved.fields[TOKENS_FIELD]).split(",")
    is_same = (
        saved.fields["tokenizer"] == recipe.fields["tokenizer"]
        and columns == recipe.fields[TOKENS_FIELD].split(",")[: len(columns)]
    )
    if not is_same or not _is_automatic(saved.sources) or not _is_automatic(recipe.sources):
        return recipe
    tokenizer = recipe.tokenizer
    pairs = [re.fullmatch(r"(None|\d{1,9})/(None|\d{1,9})", text) for text in texts]
    frames = tuple((_read_id(pair[1]), _read_id(pair[2])) for pair in pairs if pair)
    known = [number < tokenizer.vocab_size for pair in frames for number in pair if number]
    if len(frames) < len(pairs) or len(frames) > len(tokenizer.frames) or not all(known):
        return recipe
    logger.warning(
        "bos_eos: the tokenizer's files now give %s, but the run continues with the state's %s. To "
        "change it, pass bos and eos, and on_change={'bos_eos': 'accept'}",
        show(recipe.fields["bos_eos"]),
        show(saved.fields["bos_eos"]),
    )
    frames += tokenizer.frames[len(frames) :]
    return replace(recipe, tokenizer=replace(tokenizer, frames=frames))


def _is_automatic(sources: str) -> bool:
    try:
        return read_sources(sources).has_automatic_framing
    except StreamChangedError:
        return False


def _read_id(text: str) -> int | None:
    return None if text == "None" else int(text)


def resume_mixture(saved: Saved, recipe: Recipe) -> Mixture:
    """Combine the saved mixture, for the rows handed out, with the recipe's, for later rows.

    A stream is known by its place in the list, because its default name may have changed. Raises
    `StreamChangedError` if the saved names are at other places, or if streams are missing.
    """
    before, now = saved.mixture, recipe.mixture
    if not {*before.names} <= {*now.names}:
        before = replace(before, names=now.names[: len(before.names)])
    return now.resume(before, saved.position.rows)


def resume_position(saved: Saved, recipe: Recipe, on_change: Mapping[str, str]) -> Position:
    """Compute the position at which a run with this recipe continues.

    The recipe must be settled with the saved layout (`Recipe.settle`). Raises `StreamChangedError`
    if fields differ and the change is not accepted (the error lists them all) or not possible at
    the saved position, if saved streams are missing, or if a value in the state is out of range.
    Raises `ValueError` for an invalid `on_change`.
    """
    _check_on_change(on_change)
    _check_components(saved, recipe)
    resume_mixture(saved, recipe)  # raises a clearer error than the comparison of the data would
    changes = _find_changes(saved, recipe)
    if on_change.get("data") == _SAME and "data" in changes:
        logger.warning(
            "data: the shards differ. The run continues without comparing their samples, because "
            "of on_change={'data': 'same'}"
        )
        del changes["data"]
    _refuse_changes(changes, on_change, saved, recipe)
    _check_moment(saved, changes)
    _check_counts(saved, recipe)

    position = _add_components(saved.position, recipe)
    if changes.keys() & set(_CONTENT_FIELDS):
        position = _skip_open_documents(position, changes)
    _check_cursors(position, recipe.components)
    _check_stream_tails(position, recipe)
    if saved.seq_len != recipe.config.seq_len:
        position = _change_seq_len(saved, position, recipe.config.seq_len)
    return position


# ---------------------------------------------------------------- changes


def _check_on_change(on_change: Mapping[str, str]) -> None:
    for name, value in on_change.items():
        if value != _ACCEPT and (name, value) != ("data", _SAME):
            choices = "Use 'accept' or 'same'" if name == "data" else "The only choice is 'accept'"
            raise ValueError(f"on_change[{name!r}] is {value!r}. {choices}")
        if name not in ACCEPTABLE_FIELDS:
            raise ValueError(
                f"on_change: a change of {name!r} cannot be accepted, or needs no acceptance. You "
                f"can accept changes of {', '.join(sorted(ACCEPTABLE_FIELDS))}"
            )


def _check_components(saved: Saved, recipe: Recipe) -> None:
    known, found = len(saved.position.cursors), len(recipe.components)
    if known > found:
        raise StreamChangedError(
            f"mixture: the state has {known} separately ordered streams, but the loader has "
            f"{found}. Keep every saved stream, and keep the proportions or the schedule. To end a "
            "stream, set its proportion, or its weight in the schedule, to 0"
        )


def _find_changes(saved: Saved, recipe: Recipe) -> Changes:
    """Find the fields that differ, ignoring the values of added streams."""
    found, grows = recipe.fields, len(recipe.components) > len(saved.position.cursors)
    changes = {}
    for name, value in saved.fields.items():
        if name == SAMPLES_FIELD:
            continue  # compared only if `data` differs
        now = found[name]
        if grows and name in _GROWING_FIELDS and isinstance(value, str):
            now = ",".join(now.split(",")[: len(value.split(","))])
        if value != now:
            changes[name] = (value, found[name])
    if "data" in changes and has_same_samples(saved.fields, found):
        logger.info("data: the shards differ, but each has the same samples as the saved one")
        del changes["data"]
    if "tokenizer" in changes or not recipe.has_text:  # different IDs are expected, or none
        changes.pop("token_ids", None)
    if found["on_error"] == SKIP or not saved.position.counts[:, FAILED].any():
        # "raise" ends the run at a bad document, so both values have given the same rows so far
        changes.pop("on_error", None)
    return changes


def _locate(saved: Saved, recipe: Recipe) -> Changes:
    """The saved and found locations of the data or tokenizer that differs. Empty if damaged."""
    try:
        before = read_sources(saved.sources)
    except StreamChangedError:
        return {}
    now = read_sources(recipe.sources)
    return {
        "data": (before.urls, now.urls),
        "shards": (before.urls, now.urls),
        "tokenizer": (before.tokenizer_name, now.tokenizer_name),
        "token_ids": (saved.tokenizer_backend, f"tokenizers {version('tokenizers')}"),
    }


def _refuse_changes(
    changes: Changes, on_change: Mapping[str, str], saved: Saved, recipe: Recipe
) -> None:
    refused = {name: values for name, values in changes.items() if on_change.get(name) != _ACCEPT}
    if not refused:
        return
    places = _locate(saved, recipe)
    lines = [
        f"  {_DESCRIPTIONS.get(name, name)}: "
        f"saved {_show_at(value, name, 0, places)}, found {_show_at(now, name, 1, places)}"
        for name, (value, now) in refused.items()
    ]
    advice = "Restore the saved values, or start a new run without this state"
    if refused.keys() <= set(ACCEPTABLE_FIELDS):
        accepted = dict.fromkeys(refused, _ACCEPT)
        advice += f", or accept the change with on_change={accepted}"
    lines += explain_data(set(refused), saved.fields, recipe.fields)
    raise StreamChangedError("\n".join(["the state does not match this loader:", *lines, advice]))


def _show_at(value: Any, name: str, side: int, places: Changes) -> str:
    """Show a value and the location that it belongs to, if it has one."""
    return f"{show(value)} of {places[name][side]}" if name in places else show(value)


def _check_moment(saved: Saved, changes: Changes) -> None:
    position, names = saved.position, ", ".join(changes)
    if changes and position.tail is not None:
        raise StreamChangedError(
            f"{names}: cannot change in the tail of a finite run, or after its end. From row "
            f"{position.table_rows:,} on, its rows contain the leftover tokens of all lanes, so "
            "no lane can continue after them. Restore the saved values, load a state that was "
            "saved before that row, or start a new run, with a different seed if you like"
        )
    ended = [
        name
        for name, stages in zip(saved.mixture.names, position.lanes.arrays.tails, strict=False)
        if stages
    ]
    if changes and ended:
        raise StreamChangedError(
            f"{names}: cannot change once a stream of the mixture is in its tail or has ended "
            f"({', '.join(ended)}), because its lanes cannot continue. Restore the saved values, "
            "load an earlier state, or start a new run"
        )
    if changes and position.rows != position.table_rows:
        raise StreamChangedError(f"{names}: cannot change at this state. {_explain_replay(saved)}")


def _explain_replay(saved: Saved) -> str:
    """Explain why a state's cursors are of an earlier row, and how to get a state without that."""
    position = saved.position
    return (
        f"It is at row {position.rows:,}, but its cursors are those of row "
        f"{position.table_rows:,}, because it was saved between two exchanges, or after seek and "
        "before the next batch. Load it with the saved values and exchange_every=1, take one "
        "batch, and save a new state"
    )


def _check_counts(saved: Saved, recipe: Recipe) -> None:
    if len(saved.position.counts) > len(recipe.labels):
        raise StreamChangedError(
            f"counts: the state has {len(saved.position.counts)} streams, but the loader has "
            f"{len(recipe.labels)}. The state is damaged. Load an earlier one"
        )


# ---------------------------------------------------------------- moving the position


def _add_components(position: Position, recipe: Recipe) -> Position:
    """Add cursors and counts of 0 for added streams."""
    saved = position.lanes.arrays
    arrays = LaneArrays.blank(
        (len(recipe.components), recipe.num_lanes),
        len(recipe.labels),
        has_residues=saved.residues is not None,
    )
    arrays.set_lanes(np.s_[: len(saved.cursors)], saved)
    arrays.counts[: len(saved.counts)] = saved.counts
    added = len(recipe.components) - len(saved.cursors)
    tails = (*saved.tails, *[()] * added) if saved.tails else ()
    return replace(position, lanes=LaneLog(replace(arrays, tails=tails)))


def _skip_open_documents(position: Position, changes: Changes) -> Position:
    """Move each lane to the end of the document that it is reading, and drop its residue."""
    logger.warning(
        "%s changed, so each lane drops the rest of the documents that it was reading",
        ", ".join(changes),
    )
    arrays = position.lanes.arrays.copy()
    arrays.cursors[..., CURSOR_ORDINAL] += arrays.cursors[..., CURSOR_OFFSET] > 0
    arrays.cursors[..., CURSOR_OFFSET:] = 0
    if arrays.residues is not None:
        arrays.residues[:] = b""
    return replace(position, lanes=LaneLog(arrays))


def _change_seq_len(saved: Saved, position: Position, seq_len: int) -> Position:
    """Turn the open rows in residues, which fit only the saved `seq_len`, into waiting spans.

    A position in the tail is returned unchanged, because resuming packs the tail again.
    """
    if position.tail is not None:
        return position
    if position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, but it cannot change at "
            f"this state. {_explain_replay(saved)}"
        )
    if position.residues is None:
        return position
    residues = position.residues.copy()
    for place in np.ndindex(residues.shape):
        ordinal = int(position.cursors[place][CURSOR_ORDINAL])
        residues[place] = unpack_residue(residues[place], ordinal)
    return position.with_lanes(residues=residues)


# ---------------------------------------------------------------- validation of cursors


def _check_cursors(position: Position, components: Sequence[Component]) -> None:
    for component, cursors in zip(components, position.cursors, strict=True):
        _check_lanes(component.lanes, cursors)
    if position.tail is not None:
        _check_tail(position, components[0].lanes.epochs)
    if position.residues is not None:
        for place, lane in np.ndindex(position.residues.shape):
            ordinal = int(position.cursors[place, lane, CURSOR_ORDINAL])
            try:
                residue_spans(position.residue(place, lane), ordinal)
            except ValueError as error:
                raise StreamChangedError(
                    f"residues: lane {lane} has {error}. The state is damaged. Load an earlier one"
                ) from error


def _check_lanes(lanes: Lanes, cursors: Ints) -> None:
    for lane, (ordinal, offset, size) in enumerate(cursors.tolist()):
        end = lanes.end(lane)
        if 0 < size <= offset:
            raise StreamChangedError(
                f"document_sizes: lane {lane} is at token {offset} of document {ordinal}, which "
                f"has {size} tokens. The state is damaged. Load an earlier one"
            )
        if end is not None and (ordinal > end or (ordinal == end and offset)):
            raise StreamChangedError(
                f"cursors: lane {lane} is at document {ordinal}, but ends at document {end} with "
                f"epochs={lanes.epochs}. The state is damaged, or was saved with more epochs or "
                "with epochs=None. Load an earlier one, or use more epochs"
            )
    ordinals, offsets, _ = cursors.T
    _, positions = lanes.epoch_positions(np.arange(lanes.num_lanes), ordinals)
    if len(within := np.flatnonzero((positions >= lanes.num_positions) & (offsets > 0))):
        raise StreamChangedError(
            f"cursors: lane {within[0]} is within document {ordinals[within[0]]}, which does not "
            "exist. The state is damaged. Load an earlier one"
        )


def _check_stream_tails(position: Position, recipe: Recipe) -> None:
    if recipe.has_stream_ends and (position.rows != position.table_rows or position.tail):
        raise StreamChangedError(
            f"table_rows: a mixture whose streams end is at row {position.rows:,}, but its cursors "
            f"are those of row {position.table_rows:,}. The state is damaged. Load an earlier one"
        )
    for component, stages in zip(recipe.components, position.lanes.arrays.tails, strict=False):
        is_possible = all(seq_len >= 1 for seq_len, _ in stages) and recipe.has_stream_ends
        if stages and (component.lanes.epochs is None or not is_possible):
            raise StreamChangedError(
                f"stream_tails: {stages} (seq_len, rows) is not a tail of a stream with "
                f"epochs={component.lanes.epochs}. The state is damaged. Load an earlier one"
            )


def _check_tail(position: Position, epochs: int | None) -> None:
    assert position.tail is not None
    if epochs is None:
        raise StreamChangedError(
            "tail: an endless run has no tail. The state is damaged. Load an earlier one"
        )
    delivered = sum(rows for _, rows in position.tail)
    is_possible = all(seq_len >= 1 and rows >= 0 for seq_len, rows in position.tail)
    if not is_possible or delivered != position.rows - position.table_rows:
        raise StreamChangedError(
            f"tail: the stages {position.tail} (seq_len, rows) do not cover rows "
            f"{position.table_rows} to {position.rows}. The state is damaged. Load an earlier one"
        )
