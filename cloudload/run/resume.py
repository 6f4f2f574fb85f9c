"""What a resume may change: where a run goes on when the state says one thing, and the loader was
made with another.

the same rows            the world, workers, batch_size, …       nothing of it is in the recipe
from the next row on     shares of streams, streams added        the mixture keeps what held before
other rows               seq_len                                 cursors count tokens; what lanes hold back is packed anew
refused                  all else, with each field and both values; of some fields, a change may be taken on purpose
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.errors import StreamChangedError
from cloudload.order.lanes import Lanes
from cloudload.packing.residue import residue_spans, unpack_residue
from cloudload.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.run.components import Component
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.run.state import Saved
from cloudload.run.state_codec import show
from cloudload.stats import COUNTS

logger = logging.getLogger(__name__)
_DESCRIPTIONS = {
    "data": "data (fingerprints of the shards' sizes, hashes and columns, by stream or corpus)",
    "shards": "shards (fingerprints of the documents in each, from which the order follows)",
    "tokenizer": "tokenizer (fingerprint)",
    "bos_eos": "bos_eos (the ids put before and after documents, by stream)",
    "choose": "choose (samples that each stream gives to an epoch)",
}
# of these a stream that is added at the end adds an item
_GROWING_FIELDS = (
    "data",
    "shards",
    "bos_eos",
    "choose",
    "num_canonical_nodes",
    "shuffle_block_size",
)
# a change of these leaves every cursor in its place, ...
_HARMLESS_FIELDS = ("open_rows", "min_tokens", "epochs")
# ... and a change of these does so at the ends of documents
_CONTENT_FIELDS = ("data", "tokenizer", "bos_eos", "text_key", "transform", "overflow")
_ACCEPTABLE_FIELDS = (*_HARMLESS_FIELDS, *_CONTENT_FIELDS)


def go_on(saved: Saved, recipe: Recipe, on_change: Mapping[str, str]) -> Position:
    """The position to go on from with what `recipe` says now.

    Raises `StreamChangedError` that names every field that differs and may not, and what is out of
    place.
    """
    _check_on_change(on_change)
    known = saved.position.cursors.shape[0]
    if known > len(recipe.components):
        raise StreamChangedError(
            f"mixture: the state has {known} streams, but only {len(recipe.components)} are there. "
            "To end a stream, give it proportion=0"
        )
    changed = _check_fields(saved, recipe, on_change)
    if len(saved.position.counts) > len(recipe.labels):
        raise StreamChangedError(
            f"counts: of {len(saved.position.counts)} streams, not "
            f"{len(recipe.labels)}. The state is damaged"
        )
    position = _add_components(saved.position, len(recipe.components), len(recipe.labels))
    if set(changed) & set(_CONTENT_FIELDS):
        position = _leave_documents(position, changed)
    _check_cursors(position, recipe.components)
    if saved.seq_len != recipe.config.seq_len:
        position = _with_seq_len(saved, position, recipe.config.seq_len)
    return position


def _check_on_change(on_change: Mapping[str, str]) -> None:
    for name, value in on_change.items():
        if value != "accept":
            raise ValueError(f"on_change[{name!r}] is {value!r}; the one choice is 'accept'")
        if name not in _ACCEPTABLE_FIELDS:
            raise ValueError(
                f"on_change: a change of {name!r} cannot be accepted, for documents would be lost "
                "and repeated. "
                f"What can: {', '.join(sorted(_ACCEPTABLE_FIELDS))}"
            )


def _check_fields(
    saved: Saved, recipe: Recipe, on_change: Mapping[str, str]
) -> dict[str, tuple[Any, Any]]:
    """The fields that differ and were accepted: what was saved and what was found."""
    found, grows = recipe.fields, len(recipe.components) > saved.position.cursors.shape[0]
    changed = {}
    for name, value in saved.fields.items():
        now = found[name]
        if grows and name in _GROWING_FIELDS and isinstance(value, str):
            now = ",".join(now.split(",")[: len(value.split(","))])
        if value != now:
            changed[name] = (value, found[name])
    refused = {name: values for name, values in changed.items() if on_change.get(name) != "accept"}
    if refused:
        lines = [
            f"  {_DESCRIPTIONS.get(name, name)}: saved {show(value)}, found {show(now)}"
            for name, (value, now) in refused.items()
        ]
        acceptable = [name for name in refused if name in _ACCEPTABLE_FIELDS]
        advice = "Go on with what was saved, or start a new run without this state"
        if len(acceptable) == len(refused):
            advice += (
                "; or take the change on purpose with "
                f"on_change={dict.fromkeys(acceptable, 'accept')}"
            )
        raise StreamChangedError(
            "the state is of another stream of rows; these differ:\n"
            + "\n".join(lines)
            + f"\n{advice}"
        )
    if changed and (
        saved.position.tail is not None or saved.position.rows != saved.position.table_rows
    ):
        raise StreamChangedError(
            f"{', '.join(changed)}: cannot change in the tail of a finite "
            "run, nor between two exchanges. "
            "Go on with what was saved, or take a state that was saved before the tail and with "
            "exchange_every=1"
        )
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
    return position.with_lanes(cursors=cursors, counts=counts, residues=residues)


def _leave_documents(position: Position, changed: Mapping[str, Any]) -> Position:
    """Every lane at the end of the document that it stood in, without what it held back."""
    cursors = position.cursors.copy()
    logger.warning(
        "%s changed: what was left of the documents in hand of the lanes is left out",
        ", ".join(changed),
    )
    cursors[..., CURSOR_ORDINAL] += cursors[..., CURSOR_OFFSET] > 0
    cursors[..., CURSOR_OFFSET] = 0
    residues = None if position.residues is None else np.full(position.residues.shape, b"", object)
    return position.with_lanes(cursors=cursors, residues=residues)


def _with_seq_len(saved: Saved, position: Position, seq_len: int) -> Position:
    if position.tail is not None:
        return position
    if position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, and the "
            "state lies between two exchanges "
            f"(rows {position.table_rows:,} to {position.rows:,}). Save it with exchange_every=1 "
            "before changing seq_len"
        )
    if position.residues is None:
        return position
    residues = position.residues.copy()
    for component, lane in np.ndindex(residues.shape):
        residues[component, lane] = unpack_residue(
            residues[component, lane], int(position.cursors[component, lane, CURSOR_ORDINAL])
        )
    return position.with_lanes(residues=residues)


def _check_lanes(lanes: Lanes, cursors: Ints) -> None:
    numbers = np.arange(lanes.num_lanes)
    ordinals, offsets = cursors.T
    for lane, (ordinal, offset) in enumerate(cursors.tolist()):
        end = lanes.end(lane)
        if end is not None and (ordinal > end or (ordinal == end and offset)):
            raise StreamChangedError(
                f"cursors: lane {lane} stands at document {ordinal} of {end}. The state is "
                "damaged, or past these epochs"
            )
    _, positions = lanes.places(numbers, ordinals)
    if len(within := np.flatnonzero((positions >= lanes.num_positions) & (offsets > 0))):
        raise StreamChangedError(
            f"cursors: lane {within[0]} stands within document {ordinals[within[0]]}, where there "
            "is none. The state is damaged"
        )


def _check_cursors(position: Position, components: Sequence[Component]) -> None:
    for component, cursors in zip(components, position.cursors, strict=True):
        _check_lanes(component.lanes, cursors)
    if position.tail is not None:
        if components[0].lanes.epochs is None:
            raise StreamChangedError("tail: an endless run has none. The state is damaged")
        handed_out = sum(rows for _, rows in position.tail)
        if (
            any(seq_len < 1 or rows < 0 for seq_len, rows in position.tail)
            or handed_out != position.rows - position.table_rows
        ):
            raise StreamChangedError(
                f"tail: {position.tail} are not the rows after "
                f"{position.table_rows}. The state is damaged"
            )
    if position.residues is not None:
        for place, lane in np.ndindex(position.residues.shape):
            try:
                residue_spans(
                    position.residues[place, lane],
                    int(position.cursors[place, lane, CURSOR_ORDINAL]),
                )
            except ValueError as error:
                raise StreamChangedError(
                    f"residues: lane {lane} has {error}. The state is damaged"
                ) from error
