"""Read the documents of any rows, given the rows' pieces of documents.

    pieces of rows ─► documents not held ─► read and tokenized ─► Pieces, for `fill_rows`
                              ▲                     │
                held: documents of each lane  ◄─────┘
                with tokens that are in later rows

Reading a lane's rows in order therefore tokenizes each document only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloudload.loading.workers.block import Pieces
from cloudload.loading.workers.documents import FoundDocuments, LaneDocuments
from cloudload.rows import lane_packer, tables
from cloudload.run import Position
from cloudload.system import Flags, Ints

_MOST_HELD_BYTES = 1 << 28
# a best_fit lane may keep this many documents whose last tokens are not in a row yet
_MOST_OF_LANE = 16


@dataclass(frozen=True)
class _Held:
    """A document with tokens that no row has taken yet."""

    document: Ints
    """The document's row of the document table: int64 [10]."""
    tokens: memoryview


class RowReader:
    """Reads the documents of rows, starting at `position`.

    `own_lanes` (bool [flat_lanes]) are the lanes whose later rows this reader also reads; by
    default, all lanes. `cuts` is `Packing.cuts`: if true, the rest of a document is in no later
    row.
    """

    def __init__(
        self,
        documents: LaneDocuments,
        position: Position,
        *,
        own_lanes: Flags | None = None,
        cuts: bool = False,
    ) -> None:
        self._documents, self._own_lanes, self._cuts = documents, own_lanes, cuts
        self._starts: Ints = position.cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS)
        residues = position.residues
        self._residues = None if residues is None else residues.ravel().tolist()
        self._most_of_lane = 1 if residues is None else _MOST_OF_LANE
        self._held: dict[int, dict[int, _Held]] = {}
        """For each flat lane, the documents that continue after the last row read, by ordinal."""
        self._held_bytes = 0

    def read(
        self, pieces: Ints, prefetch: Callable[[FoundDocuments], object] | None = None
    ) -> Pieces:
        """Read the documents of pieces, which `RowFinder.find` returns.

        `prefetch` is called with the documents before they are read; by default, fetches their
        shards.

        Raises `DatasetError` if a document does not have the length that was counted, and the
        other errors of `LaneDocuments.read`.
        """
        keys, indices = np.unique(pieces[:, tables.PIECE_DOCUMENT], return_inverse=True)
        lanes, ordinals = tables.split_keys(keys)
        table = np.zeros((len(keys), tables.NUM_DOCUMENT_COLUMNS), np.int64)
        buffers: list[memoryview] = []
        missing = np.ones(len(keys), np.bool_)
        for index, (lane, ordinal) in enumerate(
            zip(lanes.tolist(), ordinals.tolist(), strict=True)
        ):
            held = self._held.get(lane, {}).get(ordinal)
            if held is not None:
                table[index], missing[index] = held.document, False
                table[index, tables.BUFFER] = len(buffers)
                buffers.append(held.tokens)
        if missing.any():
            found = self._documents.find(lanes[missing], ordinals[missing])
            if prefetch is None:
                self._documents.prefetch(found.samples)
            else:
                prefetch(found)
            read = self._documents.read(found, found.begun_sizes(self._starts, self._residues))
            table[missing] = read.table
            table[missing, tables.BUFFER] = len(buffers)
            buffers.append(read.ids.data)
        of_rows = pieces.copy()
        of_rows[:, tables.PIECE_DOCUMENT] = indices
        if not self._cuts:
            self._hold(of_rows, lanes, table, buffers)
        return Pieces(table, buffers, of_rows)

    def _hold(self, pieces: Ints, lanes: Ints, table: Ints, buffers: list[memoryview]) -> None:
        """Keep each lane's last documents if later rows need them, and release the others."""
        furthest = np.zeros(len(table), np.int64)
        np.maximum.at(furthest, pieces[:, tables.PIECE_DOCUMENT], pieces[:, tables.PIECE_STOP])
        is_left = (furthest < table[:, tables.SIZE]).tolist()
        # ordinals ascend within a lane, so later documents replace earlier ones
        for index, lane in enumerate(lanes.tolist()):
            held = self._held.setdefault(lane, {})
            self._release(held, int(table[index, tables.ORDINAL]))
            if is_left[index] and (self._own_lanes is None or self._own_lanes[lane]):
                document = table[index].copy()
                low = max(0, int(document[tables.BASE]))
                tokens = lane_packer.copy_tokens(
                    buffers[document[tables.BUFFER]],
                    low,
                    int(document[tables.BASE] + document[tables.SIZE]),
                )
                document[tables.BASE] -= low
                held[int(document[tables.ORDINAL])] = _Held(document, tokens)
                self._held_bytes += tokens.nbytes
            while len(held) > self._most_of_lane:
                self._release(held, next(iter(held)))
        while self._held_bytes > _MOST_HELD_BYTES:
            of_lane = self._held.pop(next(iter(self._held)))
            self._held_bytes -= sum(each.tokens.nbytes for each in of_lane.values())

    def _release(self, held: dict[int, _Held], ordinal: int) -> None:
        document = held.pop(ordinal, None)
        if document is not None:
            self._held_bytes -= document.tokens.nbytes

    def prefetch(self, pieces: Ints) -> None:
        """Start fetching the shards of rows that will be read later, given the rows' pieces."""
        found = self._documents.find(*tables.split_keys(pieces[:, tables.PIECE_DOCUMENT]))
        self._documents.prefetch(found.samples)
