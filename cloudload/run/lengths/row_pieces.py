"""Find the documents in any row of a run from token lengths, without reading documents.

    row 17, 5 lanes ─► lane 2, its row 3 ─► cursor (c, 2) ─► pieces (c, 2, 9) (d, 0, 1)

The lane's earlier rows are not visited, because sums determine the cursor before a row, and the
sizes of the next documents determine the row's pieces. Consecutive rows of a lane are found
together, and the cursor after them is kept for the rows that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloudload.errors import DatasetError
from cloudload.rows import tables
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.system import Flags, Ints

_FIRST_DOCUMENTS = 8
_ROW_BITS = 40


@dataclass(frozen=True)
class RowSpans:
    """Runs of consecutive rows of lanes: int64 [runs] each."""

    lanes: Ints
    firsts: Ints
    """The index of each run's first row within its lane."""
    counts: Ints
    """The number of rows of each run."""


class RowPieces:
    """Finds the pieces of the rows of one component's lanes.

    `starts` are the cursors from which rows are counted: int64 [lanes, 3].
    """

    def __init__(self, walker: LaneWalker, starts: Ints) -> None:
        self._walker, self._starts = walker, starts
        self._sizes, self._packing = walker.sizes, walker.packing
        self._row_units = self._packing.row_units
        """Number of units per row; `tables` defines the unit."""
        self._next = np.zeros(len(starts), np.int64), starts
        """A row of each lane, int64 [lanes], and the cursor before it, int64 [lanes, 3]. Always
        replaced as a pair."""

    def find(self, lanes: Ints, rows: Ints) -> Ints:
        """Find the pieces of rows. Row `i` is row `rows[i]`, from 0, of lane `lanes[i]`.

        Both arguments are int64 [rows]. Rows may be in any order and may be repeated. Returns int64
        [pieces, 4] with columns `tables.PIECE_ROW` and so on, by ascending row `i`. Documents are
        given by their keys. Raises `DatasetError` for a lane without tokens, and the errors of
        `LaneWalker.locate`.
        """
        return find_by_runs(
            lanes, rows, lambda runs, firsts: self._list_pieces(runs, firsts, self._start(runs))
        )

    def _start(self, runs: RowSpans) -> Ints:
        """The cursor at the start of each run: int64 [runs, 3]."""
        next_rows, next_cursors = self._next
        cursors = next_cursors[runs.lanes]
        far = np.flatnonzero(next_rows[runs.lanes] != runs.firsts)
        if len(far):
            lanes = runs.lanes[far]
            units = runs.firsts[far] * self._row_units
            cursors[far], is_dry = self._walker.locate(self._starts, lanes, units)
            check_has_rows(lanes, is_dry)
        return cursors

    def _list_pieces(self, runs: RowSpans, first_rows: Ints, cursors: Ints) -> Ints:
        """List the pieces of runs that begin at `cursors`, and keep the cursors after them.

        Returns int64 [pieces, 4], by ascending row. Run `i` begins at row `first_rows[i]`.
        """
        parts = [np.empty((0, tables.NUM_PIECE_COLUMNS), np.int64)]
        left, documents = np.arange(len(runs.lanes)), _FIRST_DOCUMENTS
        while len(left):
            is_full, pieces, of = self._cut(
                runs.lanes[left], runs.counts[left], cursors[left], documents
            )
            pieces[:, tables.PIECE_ROW] += first_rows[left[of]]
            parts.append(pieces)
            left, documents = left[~is_full], 2 * documents
        joined = np.concatenate(parts)
        in_order: Ints = joined[np.argsort(joined[:, tables.PIECE_ROW], kind="stable")]
        self._keep_ends(runs, first_rows, in_order)
        return in_order

    def _cut(
        self, lanes: Ints, counts: Ints, cursors: Ints, documents: int
    ) -> tuple[Flags, Ints, Ints]:
        """Cut the rows of each run that its lane's next `documents` documents can fill completely.

        Returns which runs these are, bool [runs], their pieces, int64 [pieces, 4], with rows from 0
        in each run, and the run of each piece, int64 [pieces].
        """
        seq_len, ordinals = self._packing.seq_len, cursors[:, :1] + np.arange(documents)
        # only the first document of a run can have tokens in earlier rows
        offsets = np.zeros_like(ordinals)
        offsets[:, 0] = cursors[:, tables.CURSOR_OFFSET]
        left = self._measure(lanes, ordinals, offsets) - offsets
        units = self._packing.units_of(left)
        ends = np.cumsum(units, axis=1)
        # a run that these documents cannot fill is measured again with twice as many, because its
        # last row may continue in later documents
        is_full: Flags = ends[:, -1] >= counts * self._row_units
        # lay the documents on a line on which row r is [r * seq_len, (r + 1) * seq_len). A unit of
        # one_per_row is a whole row, so its documents begin where rows do
        begins = (ends - units) * (seq_len // self._row_units)
        taken = np.minimum(left, seq_len) if self._packing.cuts else left
        # the last row ends the run, even within a document
        stops = np.minimum(begins + taken, is_full[:, None] * counts[:, None] * seq_len)
        pieces = tables.cut_pieces(begins.ravel(), stops.ravel(), seq_len)
        runs, indices = np.divmod(pieces[:, tables.PIECE_DOCUMENT], documents)
        # from points of the line to tokens of the document
        shifts = (offsets - begins)[runs, indices]
        pieces[:, tables.PIECE_START :] += shifts[:, None]
        keys = tables.document_keys(lanes[runs], ordinals[runs, indices])
        pieces[:, tables.PIECE_DOCUMENT] = keys
        return is_full, pieces, runs

    def _measure(self, lanes: Ints, ordinals: Ints, offsets: Ints) -> Ints:
        """The sizes of documents, of which `offsets` tokens are in rows: int64 [lanes, documents].

        `lanes` is int64 [lanes]. The others have the shape of the result.
        """
        found = self._sizes.measure(np.broadcast_to(lanes[:, None], ordinals.shape), ordinals)
        # a partly read document was accepted before, even if an option now excludes it
        return np.where(offsets > 0, found.whole, found.tokens)

    def _keep_ends(self, runs: RowSpans, first_rows: Ints, pieces: Ints) -> None:
        """Keep the cursor after each run, from which the lane's next rows are found."""
        # pieces are sorted by row, so a run's last piece is right before the row after the run
        last = pieces[np.searchsorted(pieces[:, tables.PIECE_ROW], first_rows + runs.counts) - 1]
        _, ordinals = tables.split_keys(last[:, tables.PIECE_DOCUMENT])
        found = self._sizes.measure(runs.lanes, ordinals)
        # with overflow="cut", the rest of a document is dropped, so its lane is always past it
        is_past = (last[:, tables.PIECE_STOP] == found.whole) | self._packing.cuts
        cursors = np.zeros((len(runs.lanes), self._starts.shape[1]), np.int64)
        cursors[:, tables.CURSOR_ORDINAL] = ordinals + is_past
        cursors[:, tables.CURSOR_OFFSET] = np.where(is_past, 0, last[:, tables.PIECE_STOP])
        next_rows, next_cursors = (each.copy() for each in self._next)
        next_rows[runs.lanes] = runs.firsts + runs.counts
        next_cursors[runs.lanes] = cursors
        self._next = next_rows, next_cursors


def find_by_runs(lanes: Ints, rows: Ints, list_pieces: Callable[[RowSpans, Ints], Ints]) -> Ints:
    """Find the pieces of rows like `RowPieces.find`, by runs of consecutive rows.

    `list_pieces(runs, first_rows)` lists the pieces of runs, where run `i` begins at row
    `first_rows[i]`: int64 [pieces, 4], by ascending row.
    """
    # one integer per row, ordered by lane and then by row, so a run is a range of integers
    keys, indices = np.unique(lanes << _ROW_BITS | rows, return_inverse=True)
    firsts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 2) != 1)
    runs = RowSpans(
        keys[firsts] >> _ROW_BITS,
        keys[firsts] & (1 << _ROW_BITS) - 1,
        np.diff(firsts, append=len(keys)),
    )
    return tables.select_pieces(list_pieces(runs, firsts), indices)


def check_has_rows(lanes: Ints, is_dry: Flags) -> None:
    """Raise `DatasetError` if a lane of an endless run is dry. Both arguments are [lanes]."""
    if is_dry.any():
        raise DatasetError(
            f"lane {lanes[np.argmax(is_dry)]} has no tokens in a whole epoch of its documents. Use "
            "a smaller num_lanes, or more documents"
        )
