"""Count the documents that lanes pass without reading them, because they are not selected.

    lane 0      a - - - b - c          - is not selected
    runs          3     1              counted with the first row whose cursor is past the run

No row's cursor is inside a run, so a run is a few integers, however many documents it has.
"""

from __future__ import annotations

import numpy as np

from cloudload.loading.workers.documents import FoundDocuments
from cloudload.rows import tables
from cloudload.run import Recipe
from cloudload.system import Flags, Ints

_LANE, _ORDINAL, _STREAM, _NUMBER = range(4)
# up to this many counters for each value, counting is faster than sorting
_COUNTERS_OF_VALUE = 4


class PassedDocuments:
    """The documents that a worker's lanes have passed, but that no row has counted yet."""

    def __init__(self, recipe: Recipe) -> None:
        self._corpus, self._num_lanes = recipe.corpus, recipe.num_lanes
        self._num_streams = max(len(component.streams) for component in recipe.components)
        self._runs: list[Ints] = []
        """Runs of documents of one stream: int64 [runs, 4] each, with the flat lane, the ordinal of
        the first document, the stream, and the number of documents."""

    def skip(self, found: FoundDocuments, is_read: Flags) -> FoundDocuments:
        """Pass the documents that are not read, and return the others.

        `found` is sorted by flat lane, then by ordinal. `is_read` is bool [documents].
        """
        passed = np.flatnonzero(~is_read)
        if not len(passed):
            return found
        # a run ends where a document is read, and where the next lane begins
        is_end = is_read.copy()
        is_end[1:] |= found.flat_lanes[1:] != found.flat_lanes[:-1]
        gaps: Ints = np.cumsum(is_end, dtype=np.int64)[passed]
        streams: Ints | int = 0
        if self._num_streams == 1:
            runs, numbers = _count_values(gaps)
        else:
            # a run has documents of one stream
            keys = gaps * self._num_streams + self._corpus.streams_of(found.samples[passed])
            keys, numbers = _count_values(keys)
            runs, streams = np.divmod(keys, self._num_streams)
        firsts = passed[np.searchsorted(gaps, runs)]
        lanes = found.flat_lanes[firsts]
        # a component has several streams only if it is the only one
        columns = [lanes, found.ordinals[firsts], lanes // self._num_lanes + streams, numbers]
        self._runs.append(np.stack(columns, axis=1))
        return found[np.flatnonzero(is_read)]

    def count(self, row_lanes: Ints, cursors: Ints) -> Ints:
        """Count documents with rows of lanes, and forget them.

        `row_lanes` (int64 [rows], ascending) and `cursors` (int64 [rows, 3]) are the lane of each
        row, and the lane's cursor after it. Returns int64 [runs, 3], with columns
        `tables.PASSED_ROW` and so on.
        """
        if not self._runs:
            return np.empty((0, tables.NUM_PASSED_COLUMNS), np.int64)
        runs = np.concatenate(self._runs)
        rows, is_counted = tables.find_rows_past(
            row_lanes, cursors, runs[:, _LANE], runs[:, _ORDINAL]
        )
        self._runs = [runs[~is_counted]]
        return np.column_stack([rows, runs[:, _STREAM:]])[is_counted]


def _count_values(values: Ints) -> tuple[Ints, Ints]:
    """The different values in `values` (int64 [n], at least 0), and the number of each."""
    if values.max(initial=0) > _COUNTERS_OF_VALUE * len(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values)
    found = np.flatnonzero(counts)
    return found, counts[found]
