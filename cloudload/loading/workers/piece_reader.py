"""Read the documents of any rows, given the rows' pieces of documents.

    pieces of rows ─► documents not in memory ─► read and tokenized ─► CutRows
                              ▲                     │
                        HeldDocuments      ◄────────┘
                    documents with tokens in later rows

Reading a lane's rows in order therefore tokenizes each document only once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cloudload.loading.workers.documents import FoundDocuments, LaneDocuments
from cloudload.loading.workers.held_documents import HeldDocuments
from cloudload.rows import tables
from cloudload.run import Position
from cloudload.system import Ints

Prefetch = Callable[[FoundDocuments], object]
"""Starts fetching the shards of documents that are about to be read."""


class PieceReader:
    """Reads the documents of rows after `position`."""

    def __init__(self, documents: LaneDocuments, held: HeldDocuments, position: Position) -> None:
        self._documents, self.held, self._position = documents, held, position

    def read(
        self, pieces: Ints, sizes: Ints | None = None, prefetch: Prefetch | None = None
    ) -> tables.CutRows:
        """Read the documents of pieces, which `RowFinder.find` or `Tails.find` returns.

        `sizes` (int64 [pieces]) is the size that each piece's document had when it was measured. By
        default, only documents that a lane had partly read at the position have a known size.
        `prefetch` is called with the documents before they are read; by default, their shards are
        fetched.

        Raises `DatasetError` if a document does not have the length that was counted, and the
        other errors of `LaneDocuments.read`.
        """
        keys, firsts, indices = np.unique(
            pieces[:, tables.PIECE_DOCUMENT], return_index=True, return_inverse=True
        )
        documents = self.read_documents(keys, None if sizes is None else sizes[firsts], prefetch)
        pieces = pieces.copy()
        pieces[:, tables.PIECE_DOCUMENT] = indices
        stops = np.zeros(len(keys), np.int64)
        np.maximum.at(stops, indices, pieces[:, tables.PIECE_STOP])
        self.held.hold(documents, stops)
        return tables.CutRows(documents, pieces)

    def read_documents(
        self, keys: Ints, sizes: Ints | None = None, prefetch: Prefetch | None = None
    ) -> tables.ReadDocuments:
        """Read whole documents, in the order of their `keys` (int64 [documents]).

        `sizes` is int64 [documents]. It, `prefetch`, and the errors are those of `read`.
        """
        in_memory = self.held.find(keys)
        parts = [document for document in in_memory if document is not None]
        is_missing = np.array([document is None for document in in_memory], np.bool_)
        if is_missing.any():
            found = self._documents.find(*tables.split_keys(keys[is_missing]))
            if prefetch is None:
                self._documents.prefetch(found.samples)
            else:
                prefetch(found)
            begun = found.begun_sizes(self._position) if sizes is None else sizes[is_missing]
            parts.append(self._documents.read(found, begun))
        joined = tables.join_documents(parts)
        # the documents in memory are the first ones of `joined`
        table = np.empty_like(joined.table)
        table[np.argsort(is_missing, kind="stable")] = joined.table
        return tables.ReadDocuments(table, joined.buffers)

    def prefetch(self, pieces: Ints) -> None:
        """Start fetching the shards of rows that will be read later, given the rows' pieces."""
        found = self._documents.find(*tables.split_keys(pieces[:, tables.PIECE_DOCUMENT]))
        self._documents.prefetch(found.samples)
