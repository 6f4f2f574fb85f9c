"""The documents that a run reads, and the nodes that read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.data import Corpus
from cloudload.order import RankShare, mixture_counts
from cloudload.rows import tables
from cloudload.run import Position, Recipe, RowFinder, RunLengths
from cloudload.system import NEVER, Flags, Ints

_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class NodeReads:
    """The documents that a run reads."""

    lengths: RunLengths
    num_rows: int
    """Number of rows of the run."""
    rows_ahead: int
    """Number of rows after the run that workers may read ahead."""
    documents_ahead: tuple[int, ...]
    """For each component, the documents per lane that are fetched ahead beyond `rows_ahead`."""
    share: RankShare
    """The share of one rank, which knows the nodes of all ranks."""
    is_whole: bool
    """Whether the run reads all documents of all epochs, so that nothing is read ahead."""
    measures_rest: bool = False
    """Whether, at the end of a finite run, ranks read the documents left in their lanes to learn
    their sizes, because there are no token lengths."""

    @property
    def corpus(self) -> Corpus:
        """The corpus of the run."""
        return self.lengths.recipe.corpus

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run. Its mixture includes the ends of the streams."""
        recipe = self.lengths.recipe
        return self.lengths.find_tails(self.start).recipe if recipe.has_tails else recipe

    @cached_property
    def start(self) -> Position:
        """The position at the start of the run."""
        return Position.start(self.lengths.recipe)

    @cached_property
    def finder(self) -> RowFinder:
        """Finds the documents of the run's rows."""
        lengths = self.lengths
        if lengths.recipe.has_tails:
            lengths = lengths.end(lengths.find_tails(self.start).ending)
        return RowFinder(lengths, self.start)

    @property
    def last_row(self) -> int:
        """One past the last row that workers may read, including read-ahead."""
        return self.num_rows + self.rows_ahead

    @cached_property
    def sharers(self) -> Flags | None:
        """Which nodes make rows of each lane: bool [lanes, nodes]; None with one node per lane.

        All of these nodes may fetch the lane's next documents ahead.
        """
        share = self.share
        if share.is_even:
            return None
        found = np.zeros((share.num_lanes, int(share.hosts.max()) + 1), np.bool_)
        found[np.arange(share.num_lanes), share.lane_hosts] = True
        for start in range(0, self.last_row, _ROWS_AT_ONCE):
            rows = np.arange(start, min(self.last_row, start + _ROWS_AT_ONCE))
            lanes = rows % share.num_lanes
            found[lanes, find_nodes(share, lanes, rows)] = True
        return found

    def find(self, row: int) -> Ints | None:
        """Return the cursors at a row: int64 [components, lanes, 3]; None if a lane has ended."""
        found = self.lengths.advance(self.start, row)
        return None if found is None or found.is_in_tail else found.cursors

    @cached_property
    def tail_starts(self) -> tuple[int, ...]:
        """The first row of each component's tail; `NEVER` if its lanes do not end in the run."""
        if not self.recipe.has_tails:
            return (NEVER,) * len(self.recipe.components)
        ending = self.lengths.find_tails(self.start).ending
        ends = zip(ending.lane_ends, ending.stream_ends, strict=True)
        return tuple(
            first if first < ending.end or end <= ending.end else NEVER for first, end in ends
        )

    @property
    def end(self) -> int:
        """The number of rows until the run's data ends, or `NEVER`."""
        if not self.recipe.has_tails:
            return NEVER
        return self.lengths.find_tails(self.start).ending.end

    def reaches_tail(self, index: int) -> bool:
        """Whether a component's tail begins before the last row that workers may read."""
        start = self.tail_starts[index]
        return start < self.last_row or (start == self.last_row and self.is_whole)

    def list_remnants(self, index: int) -> tuple[Ints, Ints]:
        """Return the lane and the ordinal of each document left at the tail: int64 [remnants]."""
        remnants = self.lengths.find_tails(self.start).tail(index).remnants
        lanes, ordinals = remnants[:, [tables.REMNANT_LANE, tables.REMNANT_ORDINAL]].T
        return lanes % self.recipe.num_lanes, ordinals

    @cached_property
    def stops(self) -> Ints:
        """The ordinal after the last document that each lane may read: int64 [components, lanes].

        Documents that are only fetched ahead do not count as read.
        """
        recipe = self.recipe
        rows = mixture_counts.count_rows(recipe.mixture, recipe.num_lanes, 0, self.last_row)
        return np.stack([self._find_stops(index, own) for index, own in enumerate(rows)])

    def _find_stops(self, index: int, rows: Ints) -> Ints:
        """Return the `stops` of a component after `rows` rows of each lane (int64 [lanes])."""
        ends = self.recipe.components[index].lanes.ends
        if self.is_whole or self.tail_starts[index] < self.last_row:
            return ends
        start, walker = self.start, self.lengths.walkers[index]
        residues = None if start.residues is None else start.residues[index]
        found = walker.advance(start.cursors[index], rows, residues)
        if found.is_dry.any():
            return ends
        stops: Ints = found.cursors[:, tables.CURSOR_ORDINAL] + (
            found.cursors[:, tables.CURSOR_OFFSET] > 0
        )
        return stops


def find_nodes(share: RankShare, lanes: Ints, rows: Ints) -> Ints:
    """Return the node that computes each row: int64 [rows]. `lanes` are the rows' lanes."""
    if share.is_even or not len(rows):
        nodes: Ints = share.lane_hosts[lanes]
        return nodes
    batches, indices = np.unique(rows // share.global_batch, return_inverse=True)
    starts = (batches * share.global_batch).tolist()
    ranks = np.stack([share.ranks_of(start) for start in starts])
    dealt_nodes: Ints = share.hosts[ranks[indices, rows % share.global_batch]]
    return dealt_nodes
