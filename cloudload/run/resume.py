"""Compute the position at which a loader continues a saved run, and refuse unsafe changes.

no effect on rows        world, workers, batch_size, …       they are not part of the recipe
                         shards written again                if their samples are the same; see
                                                             `same_data`
from the next row on     shares of streams, streams added    the mixture keeps earlier rows
                         stopping
different rows           seq_len                             cursors count tokens; residues are
                                                             packed again
after a bad document     on_error="skip" after "raise"       no document has failed so far
refused                  other fields of the recipe, listed with both values; the user may accept
                         a change of some of them with `on_change`
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.order.mixture import Mixture
from cloudload.rows.packing.residue import unpack_residue
from cloudload.rows.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.run.changes import (
    CONTENT_FIELDS,
    SAME,
    Changes,
    check_moment,
    check_on_change,
    explain_replay,
    find_changes,
    refuse_changes,
)
from cloudload.run.position import LaneArrays, LaneLog, Position
from cloudload.run.position_checks import check_cursors, check_stream_tails
from cloudload.run.recipe import Recipe
from cloudload.run.state import Saved

logger = logging.getLogger("cloudload.resume")


def resume_mixture(saved: Saved, recipe: Recipe) -> Mixture:
    """Combine the saved mixture, for the rows delivered, with the recipe's, for later rows.

    Streams whose names have changed, as default names may, are matched by their place in the list.
    Raises `StreamChangedError` if the saved names are at other places, or if streams are missing.
    """
    before, now = saved.mixture, recipe.mixture
    if not {*before.names} <= {*now.names}:
        before = replace(before, names=now.names[: len(before.names)])
    return now.resume(before, saved.position.rows)


def resume_packing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe whose lanes begin with as many waiting documents as those of the saved run.

    The recipe must be settled with the saved layout (`Recipe.settle`).
    """
    lanes = recipe.components[0].lanes
    first = saved.position.origin.first_ordinal(lanes) if saved.is_fair else None
    return replace(recipe, fair_from=first)


def resume_position(saved: Saved, recipe: Recipe, on_change: Mapping[str, str]) -> Position:
    """Compute the position at which a run with this recipe continues.

    The recipe must be settled with the saved layout (`Recipe.settle`). Raises `StreamChangedError`
    if changes are not accepted (the error lists all of them) or not possible at the saved position,
    if saved streams are missing, or if a value in the state is out of range. Raises `ValueError`
    for an invalid `on_change`.
    """
    check_on_change(on_change)
    _check_components(saved, recipe)
    resume_mixture(saved, recipe)  # raises a clearer error than the comparison of the data would
    changes = find_changes(saved, recipe)
    if on_change.get("data") == SAME and "data" in changes:
        logger.warning(
            "data: the shards differ. The run continues without comparing their samples, because "
            "of on_change={'data': 'same'}"
        )
        del changes["data"]
    refuse_changes(changes, on_change, saved, recipe)
    check_moment(saved, changes)
    _check_counts(saved, recipe)

    position = _add_components(saved.position, recipe)
    if changes.keys() & set(CONTENT_FIELDS):
        position = _skip_open_documents(position, changes)
    check_cursors(position, recipe.components)
    check_stream_tails(position, recipe)
    if saved.seq_len != recipe.config.seq_len:
        position = _change_seq_len(saved, position, recipe.config.seq_len)
    return position


def _check_components(saved: Saved, recipe: Recipe) -> None:
    known, found = len(saved.position.cursors), len(recipe.components)
    if known > found:
        raise StreamChangedError(
            f"mixture: the state has {known} separately ordered streams, but the loader has "
            f"{found}. Keep every saved stream, and keep the proportions or the schedule. To end a "
            "stream, set its proportion, or its weight in the schedule, to 0"
        )


def _check_counts(saved: Saved, recipe: Recipe) -> None:
    if len(saved.position.counts) > len(recipe.labels):
        raise StreamChangedError(
            f"counts: the state has {len(saved.position.counts)} streams, but the loader has "
            f"{len(recipe.labels)}. The state is damaged. Load an earlier one"
        )


def _add_components(position: Position, recipe: Recipe) -> Position:
    """Add cursors and counts, all 0, for the streams that the recipe adds."""
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

    Returns a position in the tail unchanged, because resuming packs the tail again.
    """
    if position.tail is not None:
        return position
    if position.rows != position.table_rows:
        raise StreamChangedError(
            f"seq_len: saved {saved.seq_len!r}, found {seq_len!r}, but seq_len cannot change on a "
            f"resume from this state. {explain_replay(saved)}"
        )
    if position.residues is None:
        return position
    residues = position.residues.copy()
    for place in np.ndindex(residues.shape):
        ordinal = int(position.cursors[place][CURSOR_ORDINAL])
        residues[place] = unpack_residue(residues[place], ordinal)
    return position.with_lanes(residues=residues)
