"""Measure and share the documents at the end of a finite run, and cut a worker's rows of the tail.

    measure       lanes ─► remaining documents of each ─► their sizes, to exchange
    read_whole    documents of own lanes, needed in other workers' rows ─► their tokens
    cut           tails ─► pieces of this worker's rows ─► PieceReader ─► CutRows

A row of the tail may contain documents of any lane. If this worker has not measured a document, and
no other worker has sent it, this worker reads it when a row needs it. In a mixture with streams
that end, each stream has its own tail. The rows are divided among workers in the same way as rows
of lanes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloudload.data import Corpus
from cloudload.loading.workers.documents import LaneDocuments
from cloudload.loading.workers.piece_reader import PieceReader
from cloudload.loading.workers.worker_plan import SharedDocuments
from cloudload.rows import counts_of_sizes, tables
from cloudload.run import Position, Tails
from cloudload.system import Ints, count_within

_DOCUMENTS_AT_ONCE = 256


class TailReader:
    """Reads the tails of a corpus for one worker, with the worker's `reader`."""

    def __init__(self, corpus: Corpus, documents: LaneDocuments, reader: PieceReader) -> None:
        self._corpus, self._documents, self._reader = corpus, documents, reader

    def measure(self, position: Position, own: Ints, ends: Ints) -> Ints:
        """Measure the remaining documents of lanes, and return their sizes in tokens, by lane.

        `own` and `ends` are int64 [lanes]. The remaining ordinals of lane `own[i]` are those from
        its cursor at `position` to `ends[i] - 1`. The result is int64 [documents]. A size is
        `Size.ABSENT` for a hole at the end of an epoch, and says why a document is left
        out. Keeps the first documents in memory for the rows of the tail.

        For example, for own 0 1, cursors at ordinals 3 5, and ends 5 6, the result has the sizes of
        documents 3 and 4 of lane 0, and of document 5 of lane 1.
        """
        heads = position.cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS)[own, tables.CURSOR_ORDINAL]
        counts, documents = ends - heads, self._documents
        lanes = np.repeat(own, counts)
        firsts = np.cumsum(counts) - counts
        ordinals = np.repeat(heads, counts) + count_within(counts)
        sizes = np.full(len(lanes), tables.Size.ABSENT, np.int64)
        # read in the order of the tail's rows, so that the documents kept are those needed first
        canonical = np.lexsort((lanes, ordinals))
        found = documents.find(lanes[canonical], ordinals[canonical])
        # the sizes of a lane are together, by ordinal
        index = np.searchsorted(own, found.flat_lanes)
        places = firsts[index] + found.ordinals - heads[index]
        sizes[places] = tables.Size.DESELECTED
        begun = found.begun_sizes(position)
        left = np.flatnonzero(documents.is_selected(found.samples) | (begun != tables.Size.ABSENT))
        found, places, begun = found[left], places[left], begun[left]
        for first in range(0, len(found), _DOCUMENTS_AT_ONCE):
            chunk = slice(first, first + _DOCUMENTS_AT_ONCE)
            documents.prefetch(found.samples[first : first + 2 * _DOCUMENTS_AT_ONCE])
            read = documents.read(found[chunk], begun[chunk])
            self._reader.held.keep(read)
            sizes[places[chunk]] = tables.sizes_with_reasons(
                read.table[:, tables.SIZE], read.table[:, tables.COUNT]
            )
        return sizes

    def cut(self, tails: Tails, components: Ints, rows: Ints) -> tables.CutRows:
        """Cut rows of the run from tails, with the documents that they count.

        `components` (int64 [rows]) are the streams of `rows` (int64 [rows], ascending). Raises the
        errors of `LaneDocuments.find` and `read`.
        """
        cut = self._reader.read(*tails.find(components, rows))
        indices, remnants = tails.find_counted(components, rows)
        found = self._documents.find(
            remnants[:, tables.REMNANT_LANE], remnants[:, tables.REMNANT_ORDINAL]
        )
        sizes = remnants[:, tables.REMNANT_SIZE]
        columns = [indices, self._corpus.streams_of(found.samples), counts_of_sizes(sizes), sizes]
        return replace(cut, counted=np.column_stack(columns))

    def read_whole(self, documents: Ints) -> tables.CutRows:
        """Read whole documents, as a single row, and keep them for the rows of the tail.

        `documents` is int64 [documents, 3]: the lane, ordinal, and size of each. Raises the errors
        of `LaneDocuments.find` and `read`.
        """
        lanes, ordinals, sizes = documents.T
        whole = self._reader.read_documents(tables.document_keys(lanes, ordinals), sizes)
        self._reader.held.keep(whole)
        return tables.join_whole(whole)


def open_shared(shared: SharedDocuments, documents: LaneDocuments) -> tables.ReadDocuments:
    """Return documents that other workers have read."""
    lanes, ordinals, sizes = shared.documents.T
    table = documents.describe(documents.find(lanes, ordinals))
    table[:, tables.SIZE], table[:, tables.BASE] = sizes, np.cumsum(sizes) - sizes
    return tables.ReadDocuments(table, [shared.tokens.data])
