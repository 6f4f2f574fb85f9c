"""Compute the end of a finite run from lengths: its lanes' ends, its tail, and its statistics.

units left in each lane ─► first row that a lane cannot fill ─► sizes of the documents left
                                                                    └─► tail, packed when read
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloudload.rows.packing.tables import (
    REMNANT_SIZE,
    SIZE_ABSENT,
    TAIL_REMNANT,
    TAIL_START,
    TAIL_STOP,
)
from cloudload.rows.packing.tail import Stages, Tail, counts_of_sizes
from cloudload.run.position import LaneArrays
from cloudload.run.recipe import Recipe
from cloudload.stats import COUNTS, PADDING, TOKENS, TRUNCATED
from cloudload.system.arrays import Ints


@dataclass(frozen=True)
class Ending:
    """The end of a finite run."""

    start: int
    """The first row that its lane cannot fill. The tail begins with this row."""
    end: int
    """The number of rows in the run."""
    lanes: LaneArrays
    """The lanes at row `start`, with the statistics as of row `counted`."""
    counted: int
    """The row up to which the statistics in `lanes` count: `start`, or the row at which a run
    resumed in its tail."""
    stages: Stages
    """The stages of the tail when the run resumed; empty if it did not resume in its tail."""


def first_dry_row(num_rows: Ints, row: int) -> int:
    """The first row, at or after `row`, that its lane cannot fill.

    `num_rows` (int64 [lanes]) is the number of rows that each lane can fill.

    Example: from row 5, 2 lanes can fill 3 and 1 rows. Lane 1 fills row 5, so row 7 is dry.
    """
    lanes = np.arange(len(num_rows))
    firsts = row + (lanes - row) % len(num_rows)
    return int((firsts + num_rows * len(num_rows)).min())


class TailCounts:
    """The statistics of a tail's rows.

    `streams` (int64 [remnants]) is the stream of each remnant. The statistics of `padding_stream`
    include the padding of all rows.
    """

    def __init__(self, recipe: Recipe, tail: Tail, streams: Ints, padding_stream: int = 0) -> None:
        self._recipe, self._tail, self._streams = recipe, tail, streams
        self._padding_stream = padding_stream

    def before(self, row: int) -> Ints:
        """The statistics of the rows from the stage's first row to `row`: int64 [streams, counts].

        Rows after the end of the tail are padding.
        """
        tail, packing = self._tail, self._recipe.packing
        index = min(max(0, row - tail.first_row), tail.num_rows)
        counts = np.zeros((len(self._recipe.labels), len(COUNTS)), np.int64)
        pieces = tail.pieces[: tail.piece_starts[index]]
        tokens = pieces[:, TAIL_STOP] - pieces[:, TAIL_START]
        np.add.at(counts[:, TOKENS], self._streams[pieces[:, TAIL_REMNANT]], tokens)
        self._count_documents(counts, int(tail.passed[index]))
        num_rows = max(0, row - tail.first_row)
        counts[self._padding_stream, PADDING] = num_rows * packing.seq_len - int(tokens.sum())
        return counts

    def of_rest(self) -> Ints:
        """The statistics of a tail without rows, whose documents have no tokens left.

        Returns int64 [streams, counts].
        """
        counts = np.zeros((len(self._recipe.labels), len(COUNTS)), np.int64)
        self._count_documents(counts, len(self._tail.remnants))
        return counts

    def _count_documents(self, counts: Ints, number: int) -> None:
        """Add the documents of the first `number` remnants to `counts`."""
        sizes, packing = self._tail.remnants[:number, REMNANT_SIZE], self._recipe.packing
        counted = np.flatnonzero(sizes != SIZE_ABSENT)
        streams, sizes = self._streams[counted], sizes[counted]
        np.add.at(counts, (streams, counts_of_sizes(sizes)), 1)
        if packing.cuts:
            cut_off = np.maximum(0, sizes - packing.seq_len)
            np.add.at(counts[:, TRUNCATED], streams, cut_off)
