"""Find the documents in any row after a position from token lengths, without reading documents.

rows ─► component, lane, index in the lane ─► pieces of documents      rows before the tail
    └─► the tail, which is packed once ─────► pieces of documents      rows of the tail
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.order.mixture_counts import number_rows
from cloudload.rows.packing.tables import REMNANT_LANE, REMNANT_ORDINAL, TAIL_REMNANT
from cloudload.rows.packing.tail import Tail
from cloudload.run.lengths.best_fit_rows import BestFitRows
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.row_pieces import LANE, ROW, RowPieces
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Position
from cloudload.system.arrays import NEVER, Ints


class RowFinder:
    """Finds the documents of rows after a position."""

    def __init__(self, lengths: RunLengths, position: Position) -> None:
        self._lengths, self._position, self._recipe = lengths, position, lengths.recipe
        self._finders = [self._open(component) for component in range(len(lengths.walkers))]

    def _open(self, component: int) -> RowPieces | BestFitRows:
        lengths, position = self._lengths, self._position
        walker, cursors = lengths.walkers[component], position.cursors[component]
        if isinstance(walker, BestFitWalker):
            assert position.residues is not None
            return BestFitRows(walker, cursors, position.residues[component])
        return RowPieces(walker, lengths.sizes[component], lengths.recipe.packing, cursors)

    def find(self, rows: Ints) -> Ints:
        """Find the documents of `rows` (int64 [rows], in any order), at or after the position.

        Returns int64 [pieces, 5] with columns `row_pieces.PIECE_COLUMNS`, by ascending row. In the
        result, a row is an index into `rows`, and a lane is a flat lane. Rows past the end of a
        finite run have no pieces. Raises the errors of `RowPieces.find` and of `pack_run_tail`.
        """
        if self._recipe.has_stream_ends:
            return self._find_in_mixture(rows)
        tail_start = NEVER
        if self._recipe.config.epochs is not None:
            tail_start = self._lengths.find_ending(self._position).start
        in_lanes = np.flatnonzero(rows < tail_start)
        parts = [self.find_in_lanes(rows[in_lanes], in_lanes)]
        if len(in_tail := np.flatnonzero(rows >= tail_start)):
            parts.append(self._find_in_tail(rows[in_tail], in_tail))
        return _in_order(parts)

    def _find_in_mixture(self, rows: Ints) -> Ints:
        """Like `find`, for a mixture whose streams end."""
        tails = self._lengths.find_tails(self._position)
        places = np.flatnonzero(rows < tails.ending.end)
        components = self._recipe.components_of(rows[places])
        is_in_tail = tails.is_in_tail(components, rows[places])
        in_lanes, in_tails = places[~is_in_tail], places[is_in_tail]
        parts = [self.find_in_lanes(rows[in_lanes], in_lanes)]
        components = components[is_in_tail]
        numbers = tails.number_rows(components, rows[in_tails])
        for component in np.unique(components).tolist():
            own = components == component
            parts.append(_list_pieces(tails.tail(component), numbers[own], in_tails[own]))
        return _in_order(parts)

    def find_in_lanes(self, rows: Ints, places: Ints) -> Ints:
        """Like `find`, for rows that are known to be before the tail.

        In the result, the column of rows has `places` (int64 [rows]) instead of indices into
        `rows`.
        """
        num_lanes = self._recipe.num_lanes
        components, numbers = number_rows(
            self._recipe.mixture, num_lanes, self._position.table_rows, rows
        )
        parts = []
        for component, finder in enumerate(self._finders):
            own = np.flatnonzero(components == component)
            pieces = finder.find(rows[own] % num_lanes, numbers[own])
            pieces[:, ROW] = places[own[pieces[:, ROW]]]
            pieces[:, LANE] += component * num_lanes
            parts.append(pieces)
        return _in_order(parts)

    def _find_in_tail(self, rows: Ints, places: Ints) -> Ints:
        """The pieces of rows of the tail. In the result, `places` identify the rows."""
        tail = self._lengths.pack_tail(self._lengths.find_ending(self._position))
        return _list_pieces(tail, rows, places)


def _list_pieces(tail: Tail, rows: Ints, places: Ints) -> Ints:
    """The pieces of rows of a tail. In the result, `places` identify the rows."""
    of_rows = [tail.row_pieces(row) for row in rows.tolist()]
    pieces = np.concatenate(of_rows)
    remnants = tail.remnants[pieces[:, TAIL_REMNANT]]
    return np.column_stack(
        [
            np.repeat(places, [len(each) for each in of_rows]),
            remnants[:, [REMNANT_LANE, REMNANT_ORDINAL]],
            pieces[:, TAIL_REMNANT + 1 :],
        ]
    )


def _in_order(parts: Sequence[Ints]) -> Ints:
    """Join pieces, by ascending row."""
    joined: Ints = np.concatenate(parts)
    return joined[np.argsort(joined[:, ROW], kind="stable")]
