"""Find the documents in any row after a position from token lengths, without reading documents.

    rows ─► component, lane, index in the lane ─► pieces of documents      rows before the tail
        └─► the tail, which is packed once ─────► pieces of documents      rows of the tail

With `best_fit`, the lane is played from the nearest mark. This finds a document's rows, too:

    row      ─► its lane, played from the nearest mark before the row ─► pieces
    document ─► its lane, played from the nearest mark before the document ─► rows

The pieces of a row tell the work of its attention, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cloudload.order import index_in_group, mixture_counts
from cloudload.rows import tables
from cloudload.run.lengths import row_pieces
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.position import Position, Residues
from cloudload.system import Ints

_SPAN_COLUMNS = 3
_ROWS_AT_ONCE = 64


class RowFinder:
    """Finds the documents of rows after a position.

    The recipe of `lengths` must include the ends of a mixture's streams.
    """

    def __init__(self, lengths: RunLengths, position: Position) -> None:
        self._lengths, self._position, self._recipe = lengths, position, lengths.recipe
        self._finders = [self._open(component) for component in range(len(lengths.walkers))]

    def _open(self, component: int) -> row_pieces.RowPieces | BestFitRows:
        position = self._position
        walker, cursors = self._lengths.walkers[component], position.cursors[component]
        if isinstance(walker, BestFitWalker):
            assert position.residues is not None
            return BestFitRows(walker, cursors, position.residues[component])
        return row_pieces.RowPieces(walker, cursors)

    def find(self, rows: Ints) -> Ints:
        """Find the documents of `rows` (int64 [rows], in any order), at or after the position.

        Returns int64 [pieces, 4] with columns `tables.PIECE_ROW` and so on, by ascending row. In
        the result, a row is an index into `rows`, and a document is the key of its flat lane and
        ordinal. Rows past the end of a finite run have no pieces. Raises the errors of
        `RowPieces.find` and of `Tails.tail`.
        """
        indices = np.arange(len(rows))
        if not self._recipe.has_tails:
            return self.find_in_lanes(rows, indices)
        tails = self._lengths.find_tails(self._position)
        indices = indices[rows < tails.ending.end]
        components = self._recipe.components_of(rows[indices])
        is_in_tail = tails.is_in_tail(components, rows[indices])
        in_lanes, in_tails = indices[~is_in_tail], indices[is_in_tail]
        pieces, _ = tails.find(components[is_in_tail], rows[in_tails])
        pieces[:, tables.PIECE_ROW] = in_tails[pieces[:, tables.PIECE_ROW]]
        return _in_order([self.find_in_lanes(rows[in_lanes], in_lanes), pieces])

    def find_in_lanes(self, rows: Ints, indices: Ints) -> Ints:
        """Like `find`, for rows that are known to be before the tail.

        In the result, the column of rows has `indices` (int64 [rows]) instead of indices into
        `rows`.
        """
        num_lanes = self._recipe.num_lanes
        components, lane_rows = mixture_counts.rows_in_lanes(
            self._recipe.mixture, num_lanes, self._position.table_rows, rows
        )
        parts = []
        for component, finder in enumerate(self._finders):
            own = np.flatnonzero(components == component)
            pieces = finder.find(rows[own] % num_lanes, lane_rows[own])
            pieces[:, tables.PIECE_ROW] = indices[own[pieces[:, tables.PIECE_ROW]]]
            lanes, ordinals = tables.split_keys(pieces[:, tables.PIECE_DOCUMENT])
            pieces[:, tables.PIECE_DOCUMENT] = tables.document_keys(
                component * num_lanes + lanes, ordinals
            )
            parts.append(pieces)
        return _in_order(parts)

    def measure_attention(self, pieces: Ints, num_rows: int) -> Ints:
        """The work of the attention in each of `num_rows` rows: int64 [rows].

        It is the sum of the squares of the numbers of tokens in the row's segments: its pieces,
        and the padding at its end.
        """
        rows, lengths = (
            pieces[:, tables.PIECE_ROW],
            pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START],
        )
        padding = np.full(num_rows, self._recipe.packing.seq_len)
        np.subtract.at(padding, rows, lengths)
        work: Ints = padding**2
        np.add.at(work, rows, lengths**2)
        return work


def _in_order(parts: Sequence[Ints]) -> Ints:
    """Join pieces, by ascending row."""
    joined: Ints = np.concatenate(parts)
    return joined[np.argsort(joined[:, tables.PIECE_ROW], kind="stable")]


class RowOfDocument(NamedTuple):
    """A row that contains tokens [start, stop) of a document, and the index of this piece in it."""

    row: int
    piece: int
    start: int
    stop: int


class BestFitRows:
    """Finds the pieces of rows of one component's lanes.

    Rows are counted from the state given by `cursors` (int64 [lanes, 3]) and `residues` (object
    array of bytes, [lanes]).
    """

    def __init__(self, walker: BestFitWalker, cursors: Ints, residues: Residues) -> None:
        self._walker, self._cursors, self._residues = walker, cursors, residues

    def find(self, lanes: Ints, rows: Ints) -> Ints:
        """Find the pieces of rows, as `RowPieces.find` does. Raises the errors of `play`."""
        return row_pieces.find_by_runs(lanes, rows, self._list_pieces)

    def find_document(
        self, lane: int, ordinal: int, tokens: int, most: int
    ) -> Iterator[RowOfDocument]:
        """Yield the rows that contain the last `tokens` tokens of a document.

        Rows are indices within the lane, counted from the state, and less than `most`. Raises the
        errors of `play`.
        """
        chosen = np.array([lane])
        with self._walker.playing(chosen, self._cursors, self._residues) as playing:
            playing.approach_document(lane, ordinal)
            while tokens and (row := playing.row(lane)) < most:
                [taken] = playing.take_rows(chosen, np.array([min(_ROWS_AT_ONCE, most - row)]))
                for taken_row, encoded in enumerate(taken):
                    spans = decode_spans(encoded).tolist()
                    for index, (document, start, stop) in enumerate(spans):
                        if document == ordinal:
                            tokens -= stop - start
                            yield RowOfDocument(row + taken_row, index, start, stop)
                if not taken:
                    return

    def _list_pieces(self, runs: row_pieces.RowSpans, first_rows: Ints) -> Ints:
        """List the pieces of runs, by ascending row: int64 [pieces, 4]."""
        turns = index_in_group(runs.lanes)  # play the runs of a lane one after the other
        taken: list[list[bytes]] = [[] for _ in first_rows]
        with self._walker.playing(np.unique(runs.lanes), self._cursors, self._residues) as playing:
            for turn in range(int(turns.max(initial=-1)) + 1):
                own = np.flatnonzero(turns == turn)
                lanes, counts = runs.lanes[own], runs.counts[own]
                row_pieces.check_has_rows(lanes, playing.play(lanes, runs.firsts[own]))
                found = playing.take_rows(lanes, counts)
                row_pieces.check_has_rows(lanes, np.array(list(map(len, found)), np.int64) < counts)
                for index, rows in zip(own.tolist(), found, strict=True):
                    taken[index] = rows
        of_rows = [row for rows in taken for row in rows]
        spans = decode_spans(b"".join(of_rows))
        num_pieces = np.array(list(map(len, of_rows)), np.int64) // (4 * _SPAN_COLUMNS)
        pieces = np.empty((len(spans), tables.NUM_PIECE_COLUMNS), np.int64)
        pieces[:, tables.PIECE_ROW] = np.repeat(np.arange(len(of_rows)), num_pieces)
        lanes = np.repeat(np.repeat(runs.lanes, runs.counts), num_pieces)
        pieces[:, tables.PIECE_DOCUMENT] = tables.document_keys(lanes, spans[:, 0])
        pieces[:, tables.PIECE_START :] = spans[:, 1:]
        return pieces


def decode_spans(encoded: bytes) -> Ints:
    """Decode concatenated results of `encode_spans`: int64 [spans, 3]."""
    return np.frombuffer(encoded, "<i4").reshape(-1, _SPAN_COLUMNS).astype(np.int64)
