"""Build rows from pieces of documents: their tokens and spans. Arrays in, arrays out.

    documents   a: bos ····· eos    b: bos ·········· eos    a table, and buffers of the texts' IDs
    pieces      (row 0, a, 0, 7) (row 0, b, 0, 3) (row 1, b, 3, 12)
    rows        bos ····· eos bos ·· | ········ eos ▒        seq_len 10; ▒ is padding

Each piece costs one memory copy and a few vectorized integer operations. No Python code runs per
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.trained import PAD_IN_DOCUMENT
from cloudload.system import Frame, Ints, Tokens, count_within


@dataclass(frozen=True)
class Framing:
    """The IDs that surround the documents in rows, and the padding after each document."""

    bos: Ints
    """The bos of each stream: int64 [streams]; -1 if the stream has none."""
    eos: Ints
    """The same for the eos."""
    pad: int = 0
    """The ID of the padding at the ends of rows."""
    multiple: int = 1
    """Documents are padded to a multiple of this number of tokens, with `PAD_IN_DOCUMENT`. If it is
    above 1, buffers hold documents as `frame` returns them."""

    @staticmethod
    def of(frames: Sequence[Frame], multiple: int = 1) -> Framing:
        """Convert each stream's (bos, eos) to arrays."""
        bos, eos = (
            [-1 if frame[side] is None else frame[side] for frame in frames] for side in (0, 1)
        )
        return Framing(np.array(bos, np.int64), np.array(eos, np.int64), multiple=multiple)

    @cached_property
    def num_framing(self) -> Ints:
        """The number of bos and eos tokens around a document of each stream: int64 [streams]."""
        return (self.bos >= 0).astype(np.int64) + (self.eos >= 0)

    def pad_sizes(self, sizes: Ints) -> Ints:
        """The sizes of documents, given those before they are padded: int64, of any shape."""
        return sizes if self.multiple == 1 else -(-sizes // self.multiple) * self.multiple

    def frame(self, tokens: Tokens, sizes: Ints, streams: Ints) -> tuple[Tokens, Ints]:
        """Frame and pad documents. Returns their tokens, and their sizes: int64 [documents].

        `tokens` are those of all documents, of these `sizes`, int64 [documents].
        """
        bos, eos = self.bos[streams], self.eos[streams]
        padded = self.pad_sizes(sizes + self.num_framing[streams])
        framed = np.full(int(padded.sum()), PAD_IN_DOCUMENT, np.int32)
        starts = np.cumsum(padded) - padded
        firsts = starts + (bos >= 0)
        framed[np.repeat(firsts, sizes) + count_within(sizes)] = tokens
        framed[starts[bos >= 0]] = bos[bos >= 0]
        framed[(firsts + sizes)[eos >= 0]] = eos[eos >= 0]
        return framed, padded


def fill_rows(out: Tokens, rows: tables.CutRows, framing: Framing) -> Ints:
    """Write rows into `out` (int32 [rows, seq_len], contiguous), and pad them.

    Returns the number of tokens in each row: int64 [rows].

    Example: seq_len 9, bos 1, eos 2, a = 10 11 12, b = 20 21 22 23, and pieces (0, a, 0, 5)
    (0, b, 0, 3) (1, b, 3, 6) give rows 1 10 11 12 2 1 20 21 0 | 22 23 2 0 0 0 0 0 0, lengths 8 3.
    """
    table = rows.documents.table
    _, documents, starts, stops = rows.pieces.T
    # in flat rows, each piece is one range of tokens, so it takes one copy
    flat, flat_starts = out.reshape(-1), _flat_starts(rows.pieces, out.shape)
    flat_stops = flat_starts + stops - starts
    bos, eos = (ids[table[documents, tables.STREAM]] for ids in (framing.bos, framing.eos))
    if framing.multiple > 1:
        bos, eos = np.full((2, len(documents)), -1)  # the buffers contain them
    # a document may span rows: only its first piece has its bos, and only its last has its eos
    has_bos = (bos >= 0) & (starts == 0)
    has_eos = (eos >= 0) & (stops == table[documents, tables.SIZE])
    # no buffer contains bos or eos, so copy the text between them, and set them afterward; if token
    # 0 is the bos, the text begins with token 1
    froms = table[documents, tables.BASE] + starts + has_bos
    of = table[documents, tables.BUFFER]
    _copy_texts(
        flat_starts + has_bos,
        flat_stops - has_eos,
        froms,
        of,
        into=flat,
        buffers=rows.documents.buffers,
    )
    flat[flat_starts[has_bos]] = bos[has_bos]
    flat[flat_stops[has_eos] - 1] = eos[has_eos]
    # `out` may hold earlier rows, so padding is written, too
    lengths = row_lengths(rows.pieces, len(out))
    for row in np.flatnonzero(lengths < out.shape[1]).tolist():
        out[row, lengths[row] :] = framing.pad
    return lengths


def _copy_texts(
    starts: Ints,
    stops: Ints,
    froms: Ints,
    of: Ints,
    *,
    into: Tokens,
    buffers: Sequence[memoryview],
) -> None:
    """Set tokens [starts, stops) of `into` to those that begin at `froms` in buffers `of`.

    The four arrays are int64 [pieces].
    """
    # memoryviews are copied to without NumPy's overhead for each piece, but need plain integers
    columns = (starts, stops, froms, froms + stops - starts, of)
    target = into.data
    for to, end, start, stop, buffer in zip(*(column.tolist() for column in columns), strict=True):
        target[to:end] = buffers[buffer][start:stop]


def _flat_starts(pieces: Ints, shape: tuple[int, ...]) -> Ints:
    """The index at which each piece starts in the flattened rows: int64 [pieces].

    `shape` is (rows, seq_len). Example: with seq_len 9, sizes 5 and 3 in row 0 and 3 in row 1 give
    0 5 9.
    """
    num_rows, seq_len = shape
    rows = pieces[:, tables.PIECE_ROW]
    ends = np.cumsum(pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START])
    # the tokens of all pieces before a piece, less those before its row, are before it in its row
    before = np.concatenate([[0], ends])
    before_rows = before[np.searchsorted(rows, np.arange(num_rows))]
    flat_starts: Ints = rows * seq_len + before[:-1] - before_rows[rows]
    return flat_starts


def row_lengths(pieces: Ints, num_rows: int) -> Ints:
    """The number of tokens in each row: int64 [rows]."""
    lengths: Ints = np.bincount(
        pieces[:, tables.PIECE_ROW],
        pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START],
        num_rows,
    ).astype(np.int64)
    return lengths


def list_spans(rows: tables.CutRows) -> Ints:
    """List the spans of rows: int64 [pieces, 6], with columns `tables.SPAN_COLUMNS`."""
    table, pieces = rows.documents.table, rows.pieces
    spans = np.empty((len(pieces), len(tables.SPAN_COLUMNS)), np.int64)
    spans[:, tables.SPAN_ROW] = pieces[:, tables.PIECE_ROW]
    spans[:, tables.SPAN_STREAM : tables.SPAN_SAMPLE + 1] = table[
        pieces[:, tables.PIECE_DOCUMENT], tables.STREAM : tables.SAMPLE + 1
    ]
    spans[:, tables.SPAN_START :] = pieces[:, tables.PIECE_START :]
    return spans


assert (tables.EPOCH, tables.SAMPLE) == (
    tables.STREAM + 1,
    tables.STREAM + 2,
)  # `list_spans` copies these as one slice
