"""The tables that documents, pieces and spans travel in: int64 arrays, and the names of their
columns."""

from __future__ import annotations

from dataclasses import dataclass

from cloudload.arrays import Ints, Tokens

FIELDS = (
    "slot",
    "ordinal",
    "stream",
    "epoch",
    "sample",
    "size",
    "count",
    "base",
    "source",
    "start",
)
SLOT, ORDINAL, STREAM, EPOCH, SAMPLE, SIZE, COUNT, BASE, SOURCE, START = range(len(FIELDS))
"""Columns of a document table, int64 [documents, 10]. `sample` counts within its stream; `size` is
the tokens to be packed, none of a document that is left out; `count` what it counts as in
`stats.COUNTS`; `base` where its first token would stand in its source, bos included; `source` which
buffer that is; `start` the tokens of it that are in rows already."""


@dataclass(frozen=True)
class Documents:
    """Documents and their tokens: `ids` has those of their texts, one after the other; bos and eos
    are not among them."""

    table: Ints
    ids: Tokens


ROW, DOCUMENT, PIECE_START, PIECE_STOP = range(4)
"""Columns of pieces, int64 [pieces, 4], by ascending row: tokens [start, stop) of a document, bos
and eos included."""
SPAN_FIELDS = ("row", "stream", "epoch", "sample", "start", "stop")
# what stands in place of a document's size
NO_DOCUMENT, FILTERED = -2, -1
UNIT_FIELDS = ("lane", "ordinal", "start", "stop", "size")
