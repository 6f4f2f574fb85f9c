"""Documents that one process holds in memory, so that it reads each of them only once.

kept    documents of a tail, measured, read for other workers, or received from them:
        never released
held    documents of lanes with tokens in later rows: the last ones of each lane
"""

from __future__ import annotations

import numpy as np

from cloudload.rows import Packing, lane_packer, tables
from cloudload.system import Ints

MOST_KEPT_BYTES, MOST_HELD_BYTES = 1 << 26, 1 << 28
# memory per document, besides its tokens: a row of the document table, and Python objects
_BYTES_OF_DOCUMENT = 400
# a best_fit lane may hold this many documents whose last tokens are not in a row yet
_MOST_OF_LANE = 16


class HeldDocuments:
    """The documents of a run with `packing` that one process holds, by key."""

    def __init__(self, packing: Packing) -> None:
        self._kept: dict[int, tables.ReadDocuments] = {}
        self._free_bytes = MOST_KEPT_BYTES
        self._lanes: dict[int, dict[int, tables.ReadDocuments]] = {}
        """The documents held of each flat lane. The lane that changed last is at the end."""
        self._held_bytes = 0
        self._most_of_lane = _MOST_OF_LANE if packing.has_residue else 1
        if packing.cuts:
            self._most_of_lane = 0  # the rest of a document is in no later row

    def find(self, keys: Ints) -> list[tables.ReadDocuments | None]:
        """Return each document, or None if it is not in memory. `keys` is int64 [documents]."""
        lanes, _ = tables.split_keys(keys)
        return [
            self._kept.get(key) or self._lanes.get(lane, {}).get(key)
            for key, lane in zip(keys.tolist(), lanes.tolist(), strict=True)
        ]

    def keep(self, documents: tables.ReadDocuments, *, is_limited: bool = True) -> None:
        """Keep documents, and never release them.

        With `is_limited`, keeps up to 64 MiB, and nothing after the first call that exceeds this.
        """
        table = documents.table
        is_new = [key not in self._kept for key in tables.keys_of(table).tolist()]
        table = table[np.array(is_new, np.bool_) & (table[:, tables.SIZE] > 0)]
        if is_limited:
            needed = 4 * int(table[:, tables.SIZE].sum()) + _BYTES_OF_DOCUMENT * len(table)
            # keep only the first documents, because the next rows need them
            self._free_bytes = self._free_bytes - needed if needed <= self._free_bytes else -1
            if self._free_bytes < 0:
                return
        own = lane_packer.own_documents(tables.ReadDocuments(table, documents.buffers))
        self._kept.update(zip(tables.keys_of(table).tolist(), own, strict=True))

    def hold(self, documents: tables.ReadDocuments, stops: Ints) -> None:
        """Hold documents with tokens from `stops` (int64 [documents]) on, and release the others.

        `documents` are sorted by flat lane, then by ordinal. If a lane has too many documents, its
        first ones are released. If all lanes have more than 256 MiB, lanes that have not changed
        for the longest time are released.
        """
        if not self._most_of_lane:
            return
        keys, lanes = tables.keys_of(documents.table), documents.table[:, tables.FLAT_LANE]
        for lane, key in zip(lanes.tolist(), keys.tolist(), strict=True):
            self._release(lane, key)
        left = np.flatnonzero(stops < documents.table[:, tables.SIZE])
        own = lane_packer.own_documents(
            tables.ReadDocuments(documents.table[left], documents.buffers)
        )
        for lane, key, document in zip(lanes[left].tolist(), keys[left].tolist(), own, strict=True):
            of_lane = self._lanes[lane] = self._lanes.pop(lane, {})
            of_lane[key] = document
            self._held_bytes += document.buffers[0].nbytes
            if len(of_lane) > self._most_of_lane:
                self._release(lane, next(iter(of_lane)))
        while self._held_bytes > MOST_HELD_BYTES:
            lane, of_lane = next(iter(self._lanes.items()))
            for key in list(of_lane):
                self._release(lane, key)
            del self._lanes[lane]

    def _release(self, lane: int, key: int) -> None:
        document = self._lanes.get(lane, {}).pop(key, None)
        if document is not None:
            self._held_bytes -= document.buffers[0].nbytes
