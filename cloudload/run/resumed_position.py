"""The position of a resumed run: the saved one, converted to the recipe with which it continues.

streams added            their lanes begin at their first documents
other texts or tokens    each lane drops the rest of the document that it is reading
another seq_len          cursors count tokens, so they stay; open rows are packed again
epochs, data             no cursor may be after the end of its lane
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.order import Lanes
from cloudload.rows import residue_spans, tables, unpack_residue
from cloudload.run.changes import CONTENT_FIELDS, Changes
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.recipe import Recipe
from cloudload.run.saved import Saved
from cloudload.system import Ints

logger = logging.getLogger("cloudload.resume")


def resume_position(saved: Saved, recipe: Recipe, changes: Changes) -> Position:
    """Return the position at which a run continues with the recipe of `resume_recipe`.

    `changes` are accepted. Raises `StreamChangedError` if a value in the state is out of range.
    """
    position = saved.position
    _check_counts(saved, recipe)
    check_tails(position, recipe)
    check_cursors(position, recipe.components)
    arrays = _add_components(position.lanes.arrays, recipe)
    if changes.keys() & set(CONTENT_FIELDS):
        arrays = _skip_open_documents(arrays, changes)
    if saved.seq_len != recipe.config.seq_len:
        arrays = _close_rows(arrays)
    return replace(position, lanes=LaneLog(arrays))


def _check_counts(saved: Saved, recipe: Recipe) -> None:
    if len(saved.position.counts) > len(recipe.labels):
        raise StreamChangedError(
            f"counts: the state has {len(saved.position.counts)} streams, but the loader has "
            f"{len(recipe.labels)}. The state is damaged. Load an earlier one"
        )


def check_cursors(position: Position, components: Sequence[Component]) -> None:
    """Raise `StreamChangedError` for an impossible cursor or residue."""
    for component, cursors in zip(components, position.cursors, strict=False):
        _check_lanes(component.lanes, cursors)
    if position.residues is not None:
        for index, lane in np.ndindex(position.residues.shape):
            ordinal = int(position.cursors[index, lane, tables.CURSOR_ORDINAL])
            try:
                residue_spans(position.residue(index, lane), ordinal)
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


def check_tails(position: Position, recipe: Recipe) -> None:
    """Raise `StreamChangedError` if a component has an impossible tail."""
    if recipe.has_stream_ends and position.rows != position.table_rows:
        raise StreamChangedError(
            f"table_rows: a mixture whose streams end is at row {position.rows:,}, but its cursors "
            f"are from row {position.table_rows:,}. The state is damaged. Load an earlier one"
        )
    for component, stages in zip(recipe.components, position.lanes.arrays.tails, strict=False):
        is_possible = all(seq_len >= 1 for seq_len, _ in stages)
        if stages and (component.lanes.epochs is None or not is_possible):
            name, of = "stream_tails", "a stream"
            if len(recipe.components) == 1:
                name, of = "tail", "a run"
            raise StreamChangedError(
                f"{name}: {stages} (seq_len, rows) is not a tail of {of} with "
                f"epochs={component.lanes.epochs}. The state is damaged. Load an earlier one"
            )


def _add_components(arrays: LaneArrays, recipe: Recipe) -> LaneArrays:
    """Add cursors and counts, all 0, for the streams that the recipe adds."""
    components = len(recipe.components) - len(arrays.cursors)
    streams = len(recipe.labels) - len(arrays.counts)
    residues = arrays.residues
    if residues is not None:
        residues = np.concatenate([residues, np.full((components, residues.shape[1]), b"", object)])
    return LaneArrays(
        np.pad(arrays.cursors, ((0, components), (0, 0), (0, 0))),
        residues,
        np.pad(arrays.counts, ((0, streams), (0, 0))),
        (*arrays.tails, *[()] * components) if arrays.tails else (),
    )


def _skip_open_documents(arrays: LaneArrays, changes: Changes) -> LaneArrays:
    """Move each lane to the end of the document that it is reading, and drop its residue."""
    logger.warning(
        "%s changed, so each lane drops the rest of the documents that it was reading",
        ", ".join(changes),
    )
    arrays = arrays.copy()
    arrays.cursors[..., tables.CURSOR_ORDINAL] += arrays.cursors[..., tables.CURSOR_OFFSET] > 0
    arrays.cursors[..., tables.CURSOR_OFFSET :] = 0
    if arrays.residues is not None:
        arrays.residues[:] = b""
    return arrays


def _close_rows(arrays: LaneArrays) -> LaneArrays:
    """Turn the open rows in residues, which fit only the saved `seq_len`, into waiting spans.

    Components in their tails do not change, because resuming packs their tails again.
    """
    if arrays.residues is None:
        return arrays
    residues = arrays.residues.copy()
    for component, lane in np.ndindex(residues.shape):
        if not (arrays.tails and arrays.tails[component]):
            ordinal = int(arrays.cursors[component, lane, tables.CURSOR_ORDINAL])
            residues[component, lane] = unpack_residue(residues[component, lane], ordinal)
    return replace(arrays, residues=residues)
