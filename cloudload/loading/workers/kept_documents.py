"""Keep documents of a tail in a worker's memory, so that they are not read again.

measured by this worker ─┐
read by other workers ───┴─► KeptDocuments ─► rows of the tail, documents for others
"""

from __future__ import annotations

import numpy as np

from cloudload.loading.workers.documents import LaneDocuments
from cloudload.loading.workers.plan import SharedDocuments
from cloudload.rows.packing.lane_packer import own_documents
from cloudload.rows.packing.tables import BASE, FLAT_LANE, ORDINAL, SIZE, Documents
from cloudload.system.arrays import Ints

_MOST_KEPT_BYTES = 1 << 26
# memory per document, besides its tokens: a row of the document table, and Python objects
_BYTES_OF_DOCUMENT = 400

Key = tuple[int, int]
"""A document's (lane, ordinal)."""
Kept = tuple[Ints, memoryview]
"""A document's row of the document table, int64 [10], and its int32 tokens."""


class KeptDocuments:
    """The documents of the tail that one worker keeps in memory."""

    def __init__(self) -> None:
        self._kept: dict[Key, Kept] = {}
        self._free_bytes = _MOST_KEPT_BYTES

    def get(self, key: Key) -> Kept | None:
        """Return a document, or None if it is not in memory."""
        return self._kept.get(key)

    def keep(self, documents: Documents) -> None:
        """Keep documents that were measured, up to a total of 64 MiB."""
        needed = documents.ids.nbytes + _BYTES_OF_DOCUMENT * len(documents.table)
        if needed > self._free_bytes:
            self._free_bytes = 0  # keep only the first documents, because the next rows need them
            return
        self._free_bytes -= needed
        for row, tokens in own_documents(documents):
            if row[SIZE]:
                self._kept[int(row[FLAT_LANE]), int(row[ORDINAL])] = row, tokens

    def receive(self, shared: SharedDocuments, documents: LaneDocuments) -> None:
        """Keep documents that other workers have read."""
        found = documents.find(shared.lanes, shared.ordinals)
        table = documents.describe(found)
        table[:, SIZE], table[:, BASE] = shared.sizes, 0
        stops = np.cumsum(shared.sizes).tolist()
        tokens = shared.tokens.data
        for row, stop, size in zip(table, stops, shared.sizes.tolist(), strict=True):
            key = int(row[FLAT_LANE]), int(row[ORDINAL])
            self._kept[key] = row, tokens[stop - size : stop]
