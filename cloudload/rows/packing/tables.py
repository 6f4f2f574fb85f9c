"""The columns of the tables that turn documents into rows. Every table is an int64 array.

documents ─► pieces of rows ─► spans of rows      remnants in lanes ─► pieces of the tail's rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from cloudload.stats import DESELECTED, FAILED, FILTERED
from cloudload.system import Flags, Ints, count_within

NUM_DOCUMENT_COLUMNS = 10
FLAT_LANE, ORDINAL, STREAM, EPOCH, SAMPLE, SIZE, COUNT, BASE, BUFFER, START = range(
    NUM_DOCUMENT_COLUMNS
)
"""Columns of a document table, int64 [documents, 10].

`FLAT_LANE` is `component * num_lanes + lane`. `SAMPLE` is the sample's index within its stream.
`SIZE` is the number of tokens to pack, including bos and eos; 0 if the document is left out.
`COUNT` is the statistic that the document counts toward, an index into `stats.COUNTS`. Token `i` is
at `BASE + i` in buffer `BUFFER`, except for bos and eos, which the buffer does not contain. If the
stream has a bos, it is token 0. The first `START` tokens are already in rows.
"""

CURSOR_ORDINAL, CURSOR_OFFSET, CURSOR_SIZE = range(3)
"""Columns of cursors, int64 [.., 3]: the ordinal of a lane's next document, the number of that
document's tokens that are already in rows, and its number of tokens. The size is 0 if the offset is
0, or if an older version saved the cursor. Packers read and return only the first two columns."""
NUM_CURSOR_COLUMNS = 3

NUM_PIECE_COLUMNS = 4
PIECE_ROW, PIECE_DOCUMENT, PIECE_START, PIECE_STOP = range(NUM_PIECE_COLUMNS)
"""Columns of pieces, int64 [pieces, 4], sorted by row: tokens [start, stop) of a document, bos and
eos included. `PIECE_DOCUMENT` is the document's index in a document table or, in a `Tail`, the
index of its remnant. In pieces that are found before documents are read, it is the document's key;
see `document_keys`."""

COUNTED_ROW, COUNTED_STREAM, COUNTED_AS, COUNTED_SIZE = range(4)
"""Columns of counted documents, int64 [documents, 4]: each document that a lane's cursor passed,
with the row whose statistics count it. `COUNTED_AS` is the document's `COUNT`, and `COUNTED_SIZE`
its `SIZE`."""

NUM_PASSED_COLUMNS = 3
PASSED_ROW, PASSED_STREAM, PASSED_NUMBER = range(NUM_PASSED_COLUMNS)
"""Columns of passed documents, int64 [runs, 3]: the number of documents of a stream that a lane's
cursor passed, although they are not selected, with the row whose statistics count them."""

SPAN_COLUMNS = ("row", "stream", "epoch", "sample", "start", "stop")
SPAN_ROW, SPAN_STREAM, SPAN_EPOCH, SPAN_SAMPLE, SPAN_START, SPAN_STOP = range(len(SPAN_COLUMNS))
"""Columns of spans, int64 [spans, 6]: tokens [start, stop) of a sample of a stream."""


class Size(IntEnum):
    """Values below 0 in a column of sizes or lengths, where the number of tokens would be."""

    FILTERED = -1
    """The document was filtered out."""
    FAILED = -2
    """The document is bad, and on_error="skip" left it out."""
    ABSENT = -3
    """There is no document or, in a remnant, the document was counted before."""
    UNKNOWN = -4
    """There is a document, but its size is not known."""
    DESELECTED = -5
    """`select` or `drop` leaves the document out, so it is not read."""


LEFT_OUT = {Size.FILTERED: FILTERED, Size.FAILED: FAILED, Size.DESELECTED: DESELECTED}
"""The statistic that documents which are left out count toward, by their `Size`."""

NUM_REMNANT_COLUMNS = 5
REMNANT_LANE, REMNANT_ORDINAL, REMNANT_START, REMNANT_STOP, REMNANT_SIZE = range(
    NUM_REMNANT_COLUMNS
)
"""Columns of remnants, int64 [remnants, 5]: tokens [start, stop) of a document that remain in a
lane when the tail, or a stage of the tail, begins. `REMNANT_SIZE` is the document's size,
or the `Size` of one that is left out. It is `Size.ABSENT` if the document was counted before."""


_ORDINAL_BITS = 40


def document_keys(lanes: Ints, ordinals: Ints) -> Ints:
    """One integer for each document, which sorts by lane, then by ordinal: int64 [documents]."""
    return lanes << _ORDINAL_BITS | ordinals


def split_keys(keys: Ints) -> tuple[Ints, Ints]:
    """The lanes and the ordinals of `document_keys`: int64 [documents] each."""
    return keys >> _ORDINAL_BITS, keys & (1 << _ORDINAL_BITS) - 1


def keys_of(table: Ints) -> Ints:
    """The key of each document in a document table: int64 [documents]."""
    return document_keys(table[:, FLAT_LANE], table[:, ORDINAL])


def find_rows_past(
    row_lanes: Ints, cursors: Ints, lanes: Ints, ordinals: Ints
) -> tuple[Ints, Flags]:
    """Find the first row of each document's lane whose cursor is past the document.

    `row_lanes` (int64 [rows], ascending) and `cursors` (int64 [rows, 2 or more]) are the lane of
    each row, and the lane's cursor after it. `lanes` and `ordinals` are int64 [documents]. Returns
    the rows, int64 [documents], and which documents have such a row, bool [documents].
    """
    # cursors ascend in a lane, so the keys of rows ascend, too
    rows = np.searchsorted(
        document_keys(row_lanes, cursors[:, CURSOR_ORDINAL]),
        document_keys(lanes, ordinals),
        side="right",
    )
    # if no cursor of the lane is past the document, the row found is one of a later lane, or none
    return rows, np.append(row_lanes, -1)[rows] == lanes


def select_pieces(pieces: Ints, rows: Ints) -> Ints:
    """Take the pieces of `rows` (int64 [rows]), as those of rows 0, 1, 2, …: int64 [pieces, 4].

    `pieces` is sorted by row. Example: from pieces of rows 0 0 1, rows 1 0 have pieces of rows
    0 1 1.
    """
    firsts = np.searchsorted(pieces[:, PIECE_ROW], rows)
    counts = np.searchsorted(pieces[:, PIECE_ROW], rows, side="right") - firsts
    taken: Ints = pieces[np.repeat(firsts, counts) + count_within(counts)]
    taken[:, PIECE_ROW] = np.repeat(np.arange(len(rows)), counts)
    return taken


def cut_pieces(begins: Ints, stops: Ints, seq_len: int) -> Ints:
    """Cut ranges of a line at the ends of rows: int64 [pieces, 4], by ascending range.

    Row `r` is [r * seq_len, (r + 1) * seq_len) of the line. In the result, `PIECE_DOCUMENT` is the
    index of the range [begins, stops), and `PIECE_START` and `PIECE_STOP` are points of the line. A
    range that ends where it begins, or before, has no piece. Both arguments are int64 [ranges].

    Example: for seq_len 5 and the ranges [0, 4) [4, 10), the pieces are 0 0 0 4 · 0 1 4 5 ·
    1 1 5 10.
    """
    ranges = np.flatnonzero(stops > begins)
    # a range has a piece in each row from that of its first point to that of its last one
    first_rows = begins[ranges] // seq_len
    counts = (stops[ranges] - 1) // seq_len - first_rows + 1
    pieces = np.empty((counts.sum(), NUM_PIECE_COLUMNS), np.int64)
    rows = pieces[:, PIECE_ROW] = np.repeat(first_rows, counts) + count_within(counts)
    of = pieces[:, PIECE_DOCUMENT] = np.repeat(ranges, counts)
    pieces[:, PIECE_START] = np.maximum(begins[of], rows * seq_len)
    pieces[:, PIECE_STOP] = np.minimum(stops[of], (rows + 1) * seq_len)
    return pieces


def sizes_with_reasons(sizes: Ints, counts: Ints) -> Ints:
    """Sizes of documents, with a `Size` for those that are left out according to their `COUNT`."""
    sizes = sizes.copy()
    for size, count in LEFT_OUT.items():
        sizes[counts == count] = size
    return sizes


@dataclass(frozen=True)
class ReadDocuments:
    """A table of documents, and the token IDs of their texts."""

    table: Ints
    """int64 [documents, 10], with columns `FLAT_LANE` and so on."""
    buffers: Sequence[memoryview]
    """The int32 buffers that `BUFFER` refers to. They do not contain bos and eos."""


def join_documents(parts: Sequence[ReadDocuments]) -> ReadDocuments:
    """Join documents, in order. A single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    nothing = np.empty((0, NUM_DOCUMENT_COLUMNS), np.int64)
    table = np.concatenate([nothing, *(part.table for part in parts)])
    # the buffers of a part follow those of all parts before it
    num_buffers = np.array([len(part.buffers) for part in parts], np.int64)
    num_documents = np.array([len(part.table) for part in parts], np.int64)
    table[:, BUFFER] += np.repeat(np.cumsum(num_buffers) - num_buffers, num_documents)
    return ReadDocuments(table, [buffer for part in parts for buffer in part.buffers])


@dataclass(frozen=True)
class CutRows:
    """Rows, as pieces of documents. Rows that were cut from lanes also have the lanes' cursors."""

    documents: ReadDocuments
    pieces: Ints
    """int64 [pieces, 4], with columns `PIECE_ROW` and so on. `PIECE_DOCUMENT` is an index in the
    table of `documents`."""
    counted: Ints = field(default_factory=lambda: np.empty((0, 4), np.int64))
    """int64 [documents, 4], with columns `COUNTED_ROW` and so on; empty if the rows are read again
    or are counted elsewhere."""
    num_rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [lanes]: the number of rows from each lane; fewer than wanted if the lane has no more.
    The rows of a lane are together, in order."""
    cursors: Ints = field(default_factory=lambda: np.empty((0, CURSOR_SIZE), np.int64))
    """int64 [rows, 2]: the lane's cursor after each row. A `LaneReader` adds `CURSOR_SIZE`."""
    residues: Sequence[bytes] | None = None
    """[rows]: the lane's residue after each row; None if the packing has no residue."""
    passed: Ints = field(default_factory=lambda: np.empty((0, NUM_PASSED_COLUMNS), np.int64))
    """int64 [runs, 3], with columns `PASSED_ROW` and so on. Packers do not know these documents, so
    a `LaneReader` adds them."""


def join_whole(documents: ReadDocuments) -> CutRows:
    """Join whole documents to a single row, in order."""
    pieces = np.zeros((len(documents.table), NUM_PIECE_COLUMNS), np.int64)
    pieces[:, PIECE_DOCUMENT] = np.arange(len(pieces))
    pieces[:, PIECE_STOP] = documents.table[:, SIZE]
    return CutRows(documents, pieces)
