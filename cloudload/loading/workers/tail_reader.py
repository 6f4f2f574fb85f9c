"""Measure and keep the documents at the end of a finite run, and cut a worker's rows of the tail.

    measure       lanes ─► remaining documents of each ─► their sizes, to exchange
    read_whole    documents of own lanes, needed in other workers' rows ─► their tokens
    cut           tail ─► pieces of this worker's rows ─► documents of any lane

    measured by this worker ─┐
    read by other workers ───┴─► KeptDocuments ─► rows of the tail, documents for others

A row of the tail may contain documents of any lane. If this worker has not measured a document, and
no other worker has sent it, this worker reads it when a row needs it. In a mixture with streams
that end, each stream has its own tail. The rows are divided among workers in the same way as rows
of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from cloudload.loading.workers.block import BlockBuilder, Pieces
from cloudload.loading.workers.documents import FoundDocuments, LaneDocuments
from cloudload.loading.workers.worker_plan import SharedDocuments
from cloudload.rows import Tail, lane_packer, tables
from cloudload.run import Recipe
from cloudload.stats import FAILED, FILTERED
from cloudload.system import Ints, count_within

MOST_KEPT_BYTES = 1 << 26
# memory per document, besides its tokens: a row of the document table, and Python objects
_BYTES_OF_DOCUMENT = 400

Key = tuple[int, int]
"""A document's (lane, ordinal)."""
Kept = tuple[Ints, memoryview]
"""A document's row of the document table, int64 [10], and its int32 tokens."""

_DOCUMENTS_AT_ONCE = 256


class KeptDocuments:
    """The documents of the tail that one worker keeps in memory."""

    def __init__(self) -> None:
        self._kept: dict[Key, Kept] = {}
        self._free_bytes = MOST_KEPT_BYTES

    def get(self, key: Key) -> Kept | None:
        """Return a document, or None if it is not in memory."""
        return self._kept.get(key)

    def keep(self, documents: tables.Documents) -> None:
        """Keep documents that were measured, up to a total of 64 MiB."""
        needed = documents.ids.nbytes + _BYTES_OF_DOCUMENT * len(documents.table)
        if needed > self._free_bytes:
            self._free_bytes = 0  # keep only the first documents, because the next rows need them
            return
        self._free_bytes -= needed
        for row, tokens in lane_packer.own_documents(documents):
            if row[tables.SIZE]:
                self._kept[int(row[tables.FLAT_LANE]), int(row[tables.ORDINAL])] = row, tokens

    def receive(self, shared: SharedDocuments, documents: LaneDocuments) -> None:
        """Keep documents that other workers have read."""
        found = documents.find(shared.lanes, shared.ordinals)
        table = documents.describe(found)
        table[:, tables.SIZE], table[:, tables.BASE] = shared.sizes, 0
        stops = np.cumsum(shared.sizes).tolist()
        tokens = shared.tokens.data
        for row, stop, size in zip(table, stops, shared.sizes.tolist(), strict=True):
            key = int(row[tables.FLAT_LANE]), int(row[tables.ORDINAL])
            self._kept[key] = row, tokens[stop - size : stop]


class RowOfTail(NamedTuple):
    """A row of a block that is cut from a tail."""

    block_row: int
    """The index of the row in the block."""
    tail: Tail
    row: int
    """The index of the row in the `Tail`."""


class TailReader:
    """Reads the tail for one worker. Keeps `kept` and the latest block's documents in memory."""

    def __init__(self, recipe: Recipe, documents: LaneDocuments) -> None:
        self._recipe, self._documents = recipe, documents
        self.kept = KeptDocuments()
        self._held: dict[Key, Kept] = {}

    def measure(
        self, own: Ints, heads: Ints, ends: Ints, begun_sizes: Callable[[FoundDocuments], Ints]
    ) -> Ints:
        """Measure the remaining documents of lanes, and return their sizes in tokens, by lane.

        `own`, `heads`, and `ends` are int64 [lanes]. The remaining ordinals of lane `own[i]` are
        `heads[i]` to `ends[i] - 1`. `begun_sizes` is `LaneReader.begun_sizes`. The result is int64
        [documents]. A size is `Size.ABSENT` for a hole at the end of an epoch, and `Size.FILTERED`
        or `Size.FAILED` for a document that is left out. Keeps the first documents in memory for
        the rows of the tail.

        For example, for own 0 1, heads 3 5, and ends 5 6, the result has the sizes of documents 3
        and 4 of lane 0, and of document 5 of lane 1.
        """
        counts, documents = ends - heads, self._documents
        lanes = np.repeat(own, counts)
        firsts = np.cumsum(counts) - counts
        ordinals = np.repeat(heads, counts) + count_within(counts)
        sizes = np.full(len(lanes), tables.Size.ABSENT, np.int64)
        # read in the order of the tail's rows, so that the documents kept are those needed first
        canonical = np.lexsort((lanes, ordinals))
        found = documents.find(lanes[canonical], ordinals[canonical])
        for first in range(0, len(found), _DOCUMENTS_AT_ONCE):
            chunk = found[slice(first, first + _DOCUMENTS_AT_ONCE)]
            documents.prefetch(found.samples[first : first + 2 * _DOCUMENTS_AT_ONCE])
            index = np.searchsorted(own, chunk.flat_lanes)
            read = documents.read(chunk, begun_sizes(chunk))
            self.kept.keep(read)
            chunk_sizes = read.table[:, tables.SIZE].copy()
            chunk_sizes[read.table[:, tables.COUNT] == FILTERED] = tables.Size.FILTERED
            chunk_sizes[read.table[:, tables.COUNT] == FAILED] = tables.Size.FAILED
            # the sizes of a lane are together, by ordinal
            sizes[firsts[index] + chunk.ordinals - heads[index]] = chunk_sizes
        return sizes

    def cut(self, block: BlockBuilder, rows: Iterable[RowOfTail]) -> Pieces:
        """Cut rows of the block from tails, in order, and count the documents that end there.

        Raises the errors of `LaneDocuments.find` and `read`.
        """
        remnants: list[Ints] = []
        pieces: list[Ints] = []
        for block_row, tail, row in rows:
            of_row = tail.row_pieces(row)
            remnants.append(tail.remnants[of_row[:, tables.PIECE_DOCUMENT]])
            pieces.append(of_row.copy())
            pieces[-1][:, tables.PIECE_ROW] = block_row
            block.count_documents(block_row, self._streams_and_sizes(tail.row_remnants(row)))
        if not any(map(len, remnants)):
            return Pieces.empty()
        return self._join(np.concatenate(remnants), np.concatenate(pieces))

    def read_whole(self, documents: Ints) -> Pieces:
        """Read whole documents, as the pieces of a single row.

        `documents` is int64 [documents, 3]: the lane, ordinal, and size of each. Raises the errors
        of `LaneDocuments.find` and `read`.
        """
        if not len(documents):
            return Pieces.empty()
        sizes = {(lane, ordinal): size for lane, ordinal, size in documents.tolist()}
        self._read(sizes)
        table = np.stack([self._held[key][0] for key in sizes])
        table[:, tables.BUFFER] = np.arange(len(table))
        pieces = np.zeros((len(table), tables.NUM_PIECE_COLUMNS), np.int64)
        pieces[:, tables.PIECE_DOCUMENT], pieces[:, tables.PIECE_STOP] = (
            table[:, tables.BUFFER],
            table[:, tables.SIZE],
        )
        return Pieces(table, [self._held[key][1] for key in sizes], pieces)

    def _join(self, remnants: Ints, pieces: Ints) -> Pieces:
        keys = list(
            zip(
                remnants[:, tables.REMNANT_LANE].tolist(),
                remnants[:, tables.REMNANT_ORDINAL].tolist(),
                strict=True,
            )
        )
        self._read(dict(zip(keys, remnants[:, tables.REMNANT_STOP].tolist(), strict=True)))
        indices = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        table = np.stack([self._held[key][0] for key in indices])
        table[:, tables.BUFFER] = np.arange(len(table))
        pieces[:, tables.PIECE_DOCUMENT] = [indices[key] for key in keys]
        return Pieces(table, [self._held[key][1] for key in indices], pieces)

    def _read(self, sizes: Mapping[Key, int]) -> None:
        """Read the documents in `sizes` that are not in memory, and release all other documents.

        A key of `sizes` is (lane, ordinal). A value is the document's size when it was measured.
        """
        at_hand = ((key, self._held.get(key) or self.kept.get(key)) for key in sizes)
        held = {key: found for key, found in at_hand if found is not None}
        missing = [key for key in sizes if key not in held]
        if missing:
            lanes, ordinals = np.array(missing, np.int64).T
            found = self._documents.find(lanes, ordinals)
            self._documents.prefetch(found.samples)
            expected = np.array([sizes[key] for key in missing], np.int64)
            read = lane_packer.own_documents(self._documents.read(found, expected))
            held |= dict(zip(missing, read, strict=True))
        self._held = held

    def _streams_and_sizes(self, remnants: Ints) -> Ints:
        """The (stream, size) of each document not yet counted: int64 [documents, 2]."""
        remnants = remnants[remnants[:, tables.REMNANT_SIZE] != tables.Size.ABSENT]
        found = self._documents.find(
            remnants[:, tables.REMNANT_LANE], remnants[:, tables.REMNANT_ORDINAL]
        )
        streams = self._recipe.corpus.streams_of(found.samples)
        return np.column_stack([streams, remnants[:, tables.REMNANT_SIZE]])
