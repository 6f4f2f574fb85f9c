"""The documents that a run reads, and the nodes that read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.arrays import NEVER, Ints
from cloudload.lengths.run_lengths import RunLengths
from cloudload.mds.dataset import Corpus
from cloudload.order.dealing import Dealing
from cloudload.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.run.components import Component
from cloudload.run.position import Position


@dataclass(frozen=True)
class ReadingWorld:
    """The nodes that read a run."""

    node_of_lane: Ints
    """The node that owns each lane: int64 [lanes]."""
    dealing: Dealing | None
    """How rows are dealt if the world size does not divide the number of lanes; otherwise None."""
    batch_size: int
    """Rows per rank and step."""

    def nodes_of(self, lanes: Ints, rows: Ints) -> Ints:
        """The node that computes each row, given its lane: int64."""
        found = self.node_of_lane[lanes]
        if self.dealing is None or not len(rows):
            return found
        global_batch = len(self.dealing.hosts) * self.batch_size
        starts = np.unique(rows // global_batch) * global_batch
        nodes = np.repeat(self.dealing.hosts, self.batch_size)
        by_batch = np.empty((len(starts), global_batch), np.int64)
        for place, start in enumerate(starts.tolist()):
            by_batch[place, self.dealing.deal(start, self.batch_size).ravel() - start] = nodes
        dealt: Ints = by_batch[
            np.searchsorted(starts, rows // global_batch * global_batch), rows % global_batch
        ]
        return dealt


@dataclass(frozen=True)
class Reading:
    """The documents that a run reads."""

    lengths: RunLengths
    num_rows: int
    """Number of rows of the run."""
    rows_ahead: int
    """Number of rows after the run that workers may read ahead."""
    documents_ahead: tuple[int, ...]
    """For each component, the documents per lane whose shards are fetched after those rows."""
    world: ReadingWorld
    is_whole: bool
    """Whether these are all rows of a finite run, so that nothing is read ahead."""
    measures_rest: bool = False
    """Whether, at the end of a finite run, ranks read the documents left in their lanes to learn
    their sizes, because there are no token lengths."""

    @property
    def corpus(self) -> Corpus:
        """The corpus of the run."""
        return self.lengths.recipe.corpus

    @cached_property
    def start(self) -> Position:
        """The beginning of the run."""
        return Position.start(self.lengths.recipe)

    @property
    def last_row(self) -> int:
        """Documents of rows before this one may be read."""
        return self.num_rows + self.rows_ahead

    def find(self, row: int) -> Ints | None:
        """The cursors at a row: int64 [components, lanes, 3]; None past the end of the lanes."""
        found = self.lengths.advance(self.start, row)
        return None if found is None or found.tail is not None else found.cursors

    @cached_property
    def stops(self) -> Ints:
        """The first ordinal of each lane that may not be read: int64 [components, lanes].

        Documents that are only fetched ahead do not count as read.
        """
        found = None if self.is_whole else self.find(self.last_row)
        if found is None:
            ends = [list_ends(each) for each in self.lengths.recipe.components]
            return np.stack(ends)
        stops: Ints = found[..., CURSOR_ORDINAL] + (found[..., CURSOR_OFFSET] > 0)
        return stops


def list_ends(component: Component) -> Ints:
    """The ordinal at which each lane of a finite run ends: int64 [lanes]."""
    ends = [component.lanes.end(lane) for lane in range(component.lanes.num_lanes)]
    return np.array([NEVER if end is None else end for end in ends], np.int64)
