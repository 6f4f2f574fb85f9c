"""Find the documents in any row of `best_fit` lanes, and the rows of any of their documents.

row ─► its lane, played from the nearest mark before the row ─► pieces
document ─► its lane, played from the nearest mark before the document ─► rows
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cloudload.order.dealing import number_in_group
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.row_pieces import PIECE_COLUMNS, Runs, check_has_rows, find_by_runs
from cloudload.run.position import Residues
from cloudload.system.arrays import Ints

_SPAN_COLUMNS = 3
_ROWS_AT_ONCE = 64


class RowOfDocument(NamedTuple):
    """A row that contains tokens [start, stop) of a document, as its piece with index `place`."""

    row: int
    place: int
    start: int
    stop: int


class BestFitRows:
    """Finds the pieces of rows of one component's lanes.

    Rows are counted from the state given by `cursors` (int64 [lanes, 3]) and `residues` (object
    array of bytes, [lanes]).
    """

    def __init__(self, walker: BestFitWalker, cursors: Ints, residues: Residues) -> None:
        self._walker, self._cursors, self._residues = walker, cursors, residues

    def find(self, lanes: Ints, numbers: Ints) -> Ints:
        """Find the pieces of rows, as `RowPieces.find` does. Raises the errors of `play`."""
        return find_by_runs(lanes, numbers, self._list_pieces)

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
                for number, encoded in enumerate(taken):
                    spans = decode_spans(encoded).tolist()
                    for place, (document, start, stop) in enumerate(spans):
                        if document == ordinal:
                            tokens -= stop - start
                            yield RowOfDocument(row + number, place, start, stop)
                if not taken:
                    return

    def _list_pieces(self, runs: Runs, first_rows: Ints) -> Ints:
        """List the pieces of runs, by ascending row: int64 [pieces, 5]."""
        turns = number_in_group(runs.lanes)  # play the runs of a lane one after the other
        taken: list[list[bytes]] = [[] for _ in first_rows]
        with self._walker.playing(np.unique(runs.lanes), self._cursors, self._residues) as playing:
            for turn in range(int(turns.max(initial=-1)) + 1):
                own = np.flatnonzero(turns == turn)
                lanes, counts = runs.lanes[own], runs.counts[own]
                check_has_rows(lanes, playing.play(lanes, runs.firsts[own]))
                found = playing.take_rows(lanes, counts)
                check_has_rows(lanes, np.array(list(map(len, found)), np.int64) < counts)
                for place, rows in zip(own.tolist(), found, strict=True):
                    taken[place] = rows
        of_rows = [row for rows in taken for row in rows]
        spans = decode_spans(b"".join(of_rows))
        numbers = np.array(list(map(len, of_rows)), np.int64) // (4 * _SPAN_COLUMNS)
        pieces = np.empty((len(spans), len(PIECE_COLUMNS)), np.int64)
        pieces[:, 0] = np.repeat(np.arange(len(of_rows)), numbers)
        pieces[:, 1] = np.repeat(np.repeat(runs.lanes, runs.counts), numbers)
        pieces[:, 2:] = spans
        return pieces


def decode_spans(encoded: bytes) -> Ints:
    """Decode concatenated results of `encode_spans`: int64 [spans, 3]."""
    return np.frombuffer(encoded, "<i4").reshape(-1, _SPAN_COLUMNS).astype(np.int64)
