"""Check that the position in a state is possible in the run that resumes from the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.order.lanes import Lanes
from cloudload.rows.packing.residue import residue_spans
from cloudload.rows.packing.tables import CURSOR_ORDINAL
from cloudload.run.components import Component
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.system.arrays import Ints


def check_cursors(position: Position, components: Sequence[Component]) -> None:
    """Raise `StreamChangedError` for an impossible cursor, residue, or tail."""
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


def check_stream_tails(position: Position, recipe: Recipe) -> None:
    """Raise `StreamChangedError` if a stream of the mixture has an impossible tail."""
    if recipe.has_stream_ends and (position.rows != position.table_rows or position.tail):
        raise StreamChangedError(
            f"table_rows: a mixture whose streams end is at row {position.rows:,}, but its cursors "
            f"are from row {position.table_rows:,}. The state is damaged. Load an earlier one"
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
            "tail: the state has a tail, but the run is endless. The state is damaged. Load an "
            "earlier one"
        )
    delivered = sum(rows for _, rows in position.tail)
    is_possible = all(seq_len >= 1 and rows >= 0 for seq_len, rows in position.tail)
    if not is_possible or delivered != position.rows - position.table_rows:
        raise StreamChangedError(
            f"tail: the stages {position.tail} (seq_len, rows) do not cover rows "
            f"{position.table_rows} to {position.rows}. The state is damaged. Load an earlier one"
        )
