"""Read the rows dealt to a worker, in a world whose size does not divide the number of lanes.

    rows of own lanes ────┐
    rows of other lanes ──┴─► pieces, from token lengths ─► documents ─► Pieces

Most rows belong to the worker's own lanes, whose documents it reads only once. If a row of another
worker contains a part of such a document, that worker also reads the document.
"""

from __future__ import annotations

import numpy as np

from cloudload.loading.workers.block import Pieces
from cloudload.loading.workers.documents import LaneDocuments
from cloudload.loading.workers.found_documents import FoundDocuments
from cloudload.loading.workers.lane_reader import find_ends
from cloudload.loading.workers.plan import Plan
from cloudload.loading.workers.prefetch import Prefetcher
from cloudload.loading.workers.row_reader import RowReader
from cloudload.rows.packing.tables import CURSOR_ORDINAL, NUM_CURSOR_COLUMNS
from cloudload.run.lengths.row_finder import RowFinder
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.system.arrays import Ints


class DealtRows:
    """Reads the rows before the tail that are dealt to a worker. The plan must have lengths."""

    def __init__(self, plan: Plan, worker: int, documents: LaneDocuments) -> None:
        assert plan.lengths is not None
        lengths = RunLengths(plan.recipe, plan.cache_root, plan.lengths)
        self._finder = RowFinder(lengths, plan.position)
        cursors = plan.position.cursors.reshape(-1, NUM_CURSOR_COLUMNS)
        self._next_ordinals = cursors[:, CURSOR_ORDINAL].copy()
        self._prefetcher = Prefetcher(plan, worker, documents, self._next_ordinals, find_ends(plan))
        own = np.zeros(plan.num_lanes, np.bool_)
        own[plan.own_lanes(worker)] = True
        self._reader = RowReader(
            documents,
            plan.position,
            prefetch=self._prefetch,
            own_lanes=np.tile(own, len(plan.recipe.components)),
            cuts=plan.recipe.packing.cuts,
        )
        self._is_awaited = True

    def read(self, rows: Ints, *, is_awaited: bool) -> Pieces:
        """Read the documents of `rows` (int64 [rows]). `is_awaited` is as for `Prefetcher.fetch`.

        Raises the errors of `RowFinder.find` and `RowReader.read`.
        """
        self._is_awaited = is_awaited
        return self._reader.read(self._finder.find_in_lanes(rows, np.arange(len(rows))))

    def _prefetch(self, found: FoundDocuments) -> None:
        np.maximum.at(self._next_ordinals, found.flat_lanes, found.ordinals)
        self._prefetcher.fetch(found, is_awaited=self._is_awaited)
        self._prefetcher.build_orders(found.flat_lanes)
