"""Measure the documents left at the end of a finite run, and cut a worker's rows of the tail.

    Measuring    lanes ─► documents left in each ─► their sizes, to be exchanged
    InTail       tail ─► pieces of this worker's rows ─► documents of any lane, read when needed

A row of the tail may contain documents of any lane. The rows are divided among workers in the same
way as rows of lanes.
"""

from __future__ import annotations

import numpy as np

from cloudload.arrays import Ints, count_within
from cloudload.errors import StreamChangedError
from cloudload.packing.lane_packer import own_documents
from cloudload.packing.tables import (
    BUFFER,
    COUNT,
    PIECE_DOCUMENT,
    REMNANT_LANE,
    REMNANT_ORDINAL,
    REMNANT_SIZE,
    SIZE,
    SIZE_ABSENT,
    SIZE_FAILED,
    SIZE_FILTERED,
    TAIL_REMNANT,
)
from cloudload.packing.tail import Tail
from cloudload.run.recipe import Recipe
from cloudload.stats import FAILED, FILTERED
from cloudload.workers.block import BlockBuilder, Pieces
from cloudload.workers.documents import LaneDocuments

_DOCUMENTS_AT_ONCE = 256


def measure_rest(documents: LaneDocuments, own: Ints, heads: Ints, ends: Ints, begun: Ints) -> Ints:
    """Measure the documents left in lanes: their sizes in tokens, int64 [documents], by lane.

    `own`, `heads`, `ends` and `begun` are int64 [lanes]. Lane `own[i]` has ordinals `heads[i]` to
    `ends[i] - 1` left, and its cursor is inside document `begun[i]`, or between documents if that
    is -1. The size is `SIZE_ABSENT` for a hole at the end of an epoch, and `SIZE_FILTERED` or
    `SIZE_FAILED` for a document that is left out.

    Example: own 0 1, heads 3 5 and ends 5 6 give the sizes of documents 3 and 4 of lane 0, and of
    document 5 of lane 1.
    """
    numbers = ends - heads
    lanes = np.repeat(own, numbers)
    firsts = np.cumsum(numbers) - numbers
    ordinals = np.repeat(heads, numbers) + count_within(numbers)
    sizes = np.full(len(lanes), SIZE_ABSENT, np.int64)
    canonical = np.lexsort((lanes, ordinals))
    found = documents.find(lanes[canonical], ordinals[canonical])
    for first in range(0, len(found), _DOCUMENTS_AT_ONCE):
        chunk = found[slice(first, first + _DOCUMENTS_AT_ONCE)]
        documents.prefetch(found.samples[first : first + 2 * _DOCUMENTS_AT_ONCE])
        index = np.searchsorted(own, chunk.flat_lanes)
        table = documents.read(chunk, begun[index] == chunk.ordinals).table
        chunk_sizes = table[:, SIZE].copy()
        chunk_sizes[table[:, COUNT] == FILTERED] = SIZE_FILTERED
        chunk_sizes[table[:, COUNT] == FAILED] = SIZE_FAILED
        sizes[firsts[index] + chunk.ordinals - heads[index]] = chunk_sizes
    return sizes


class TailReader:
    """Cuts a worker's rows of the tail. It keeps only the documents of the latest block."""

    def __init__(self, recipe: Recipe, documents: LaneDocuments) -> None:
        self._recipe, self._documents = recipe, documents
        self._held: dict[tuple[int, int], tuple[Ints, memoryview]] = {}

    def cut(self, block: BlockBuilder, tail: Tail, first_block_row: int) -> Pieces:
        """Cut the block's rows from `first_block_row` on, and count the documents they finish.

        Raises `StreamChangedError` if the size of a document that was counted before has changed,
        and the errors of `LaneDocuments.find` and `read`.
        """
        remnants: list[Ints] = []
        pieces: list[Ints] = []
        for block_row in range(first_block_row, len(block.rows)):
            row = int(block.rows[block_row])
            of_row = tail.row_pieces(row)
            remnants.append(tail.remnants[of_row[:, TAIL_REMNANT]])
            pieces.append(np.column_stack([np.full(len(of_row), block_row), of_row]))
            block.count_documents(block_row, self._streams_and_sizes(tail.row_remnants(row)))
        if not any(map(len, remnants)):
            return Pieces.empty()
        return self._join(np.concatenate(remnants), np.concatenate(pieces))

    def _join(self, remnants: Ints, pieces: Ints) -> Pieces:
        keys = list(
            zip(
                remnants[:, REMNANT_LANE].tolist(),
                remnants[:, REMNANT_ORDINAL].tolist(),
                strict=True,
            )
        )
        self._read(keys)
        self._check_sizes(remnants)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        table = np.stack([self._held[key][0] for key in numbers])
        table[:, BUFFER] = np.arange(len(table))
        pieces[:, PIECE_DOCUMENT] = [numbers[key] for key in keys]
        return Pieces(table, [self._held[key][1] for key in numbers], pieces)

    def _check_sizes(self, remnants: Ints) -> None:
        for lane, ordinal, _, stop, size in remnants.tolist():
            found = int(self._held[lane, ordinal][0][SIZE])
            if size == SIZE_ABSENT and found != stop:
                raise StreamChangedError(
                    f"lane {lane}: document {ordinal} had {stop} tokens, but now has {found}. The "
                    "state is damaged, or was saved with a different corpus, tokenizer or "
                    "transform, or the transform is not deterministic. Load an earlier state, "
                    "restore the data and the config, or fix the transform"
                )

    def _read(self, keys: list[tuple[int, int]]) -> None:
        """Read the documents of `keys` that are not held yet, and release those not in `keys`.

        A key is (lane, ordinal).
        """
        held = {key: self._held[key] for key in keys if key in self._held}
        missing = [key for key in dict.fromkeys(keys) if key not in held]
        if missing:
            lanes, ordinals = np.array(missing, np.int64).T
            found = self._documents.find(lanes, ordinals)
            # has_begun is True for all: filtering was decided when the documents were measured
            read = own_documents(self._documents.read(found, np.ones(len(found), np.bool_)))
            held |= dict(zip(missing, read, strict=True))
        self._held = held

    def _streams_and_sizes(self, remnants: Ints) -> Ints:
        """The (stream, size) of each document that is not counted yet: int64 [documents, 2]."""
        remnants = remnants[remnants[:, REMNANT_SIZE] != SIZE_ABSENT]
        found = self._documents.find(remnants[:, REMNANT_LANE], remnants[:, REMNANT_ORDINAL])
        streams = self._recipe.corpus.streams_of(found.samples)
        return np.column_stack([streams, remnants[:, REMNANT_SIZE]])
