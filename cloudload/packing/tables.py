"""The tables that turn documents into rows: int64 arrays with named columns.

documents ─► pieces of rows ─► spans of rows         units of the tail ─► pieces of its rows
"""

from __future__ import annotations

from dataclasses import dataclass

from cloudload.arrays import Ints, Tokens

NUM_DOCUMENT_COLUMNS = 10
FLAT_LANE, ORDINAL, STREAM, EPOCH, SAMPLE, SIZE, COUNT, BASE, BUFFER, START = range(
    NUM_DOCUMENT_COLUMNS
)
"""Columns of a document table, int64 [documents, 10].

`FLAT_LANE` is `component * num_lanes + lane`. `SAMPLE` is numbered within its stream. `SIZE` is the
number of tokens to pack, 0 for a document that is left out, and `COUNT` is the statistic that it
counts toward, an index into `stats.COUNTS`. Token `i` is at `BASE + i` of buffer number `BUFFER`,
bos included. The first `START` tokens are already in rows.
"""

CURSOR_ORDINAL, CURSOR_OFFSET = range(2)
"""Columns of cursors, int64 [.., 2]: the ordinal of a lane's next document, and the number of its
tokens that are already in rows."""

PIECE_ROW, PIECE_DOCUMENT, PIECE_START, PIECE_STOP = range(4)
"""Columns of pieces, int64 [pieces, 4], by ascending row: tokens [start, stop) of a document, bos
and eos included. `PIECE_DOCUMENT` is its index in the document table."""

COUNTED_ROW, COUNTED_STREAM, COUNTED_AS, COUNTED_SIZE = range(4)
"""Columns of counted documents, int64 [documents, 4]: documents that are fully read, and the row
that they are counted with."""

SPAN_COLUMNS = ("row", "stream", "epoch", "sample", "start", "stop")
SPAN_ROW, SPAN_STREAM, SPAN_EPOCH, SPAN_SAMPLE, SPAN_START, SPAN_STOP = range(len(SPAN_COLUMNS))
"""Columns of spans, int64 [spans, 6]: tokens [start, stop) of a sample of a stream."""

SIZE_ABSENT, SIZE_FILTERED = -2, -1
"""Markers in a column of sizes: no document, or a document that is filtered out."""

NUM_UNIT_COLUMNS = 5
UNIT_LANE, UNIT_ORDINAL, UNIT_START, UNIT_STOP, UNIT_SIZE = range(NUM_UNIT_COLUMNS)
"""Columns of the tail's units, int64 [units, 5]: tokens [start, stop) of a document. `UNIT_SIZE` is
the document's size or `SIZE_FILTERED` until it is counted, then `SIZE_ABSENT`."""

TAIL_UNIT, TAIL_START, TAIL_STOP = range(3)
"""Columns of the pieces of the tail's rows, int64 [pieces, 3]: the index of a unit, and tokens
[start, stop) of its document."""


@dataclass(frozen=True)
class Documents:
    """Documents and their tokens."""

    table: Ints
    """int64 [documents, 10], by `FLAT_LANE` and so on."""
    ids: Tokens
    """int32 [tokens]: the ids of all texts, one after the other, without bos and eos."""
