"""Rows out of pieces of documents: their tokens, spans, and what they count. Arrays in, arrays out.

    documents     a: bos ····· eos     b: bos ·········· eos        a table, and buffers with the ids of the texts
    pieces        (row 0, a, 0, 7) (row 0, b, 0, 3) (row 1, b, 3, 12)
    rows          bos ····· eos bos ·· | ········ eos ▒▒▒▒▒▒        ▒ is padding, 0

A piece costs one copy of memory and a few integers of vector work; a token costs nothing in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.arrays import Frame, Ints, Tokens
from cloudload.packing.tables import (
    BASE,
    BUFFER,
    EPOCH,
    PIECE_DOCUMENT,
    PIECE_ROW,
    PIECE_START,
    PIECE_STOP,
    SAMPLE,
    SIZE,
    SPAN_COLUMNS,
    SPAN_ROW,
    SPAN_SAMPLE,
    SPAN_START,
    SPAN_STREAM,
    STREAM,
)


@dataclass(frozen=True)
class Framing:
    """The ids before and after a document, by stream: int64 [streams], -1 for none."""

    bos: Ints
    eos: Ints

    @staticmethod
    def of(frames: Sequence[Frame]) -> Framing:
        """As arrays."""
        bos, eos = (
            [-1 if frame[side] is None else frame[side] for frame in frames] for side in (0, 1)
        )
        return Framing(np.array(bos, np.int64), np.array(eos, np.int64))


def fill_rows(
    out: Tokens, table: Ints, buffers: Sequence[memoryview], pieces: Ints, framing: Framing
) -> Ints:
    """Write the pieces into the rows of `out`, int32 [rows, seq_len], contiguous; returns each
    row's tokens.

    `buffers` are int32 buffers of ids; a document's token `i` stands at `base + i` of its buffer,
    unless it is its bos or eos.
    """
    num_rows, seq_len = out.shape
    rows, documents, starts, stops = pieces.T
    sizes = stops - starts
    lengths = row_lengths(pieces, num_rows)
    ends = np.cumsum(sizes)
    firsts = np.searchsorted(rows, np.arange(num_rows))
    before = np.concatenate([[0], ends])[firsts]
    places = rows * seq_len + ends - sizes - before[rows]
    flat = out.reshape(-1)

    streams = table[documents, STREAM]
    bos, eos = framing.bos[streams], framing.eos[streams]
    has_bos, has_eos = (bos >= 0) & (starts == 0), (eos >= 0) & (stops == table[documents, SIZE])
    body_places = places + has_bos
    body_sizes = sizes - has_bos - has_eos
    froms = table[documents, BASE] + starts + has_bos
    target = flat.data
    columns = (
        body_places,
        body_places + body_sizes,
        froms,
        froms + body_sizes,
        table[documents, BUFFER],
    )
    for at, stop, start, end, number in zip(*(column.tolist() for column in columns), strict=True):
        target[at:stop] = buffers[number][start:end]
    flat[places[has_bos]] = bos[has_bos]
    flat[(places + sizes - 1)[has_eos]] = eos[has_eos]
    for row in np.flatnonzero(lengths < seq_len).tolist():
        out[row, lengths[row] :] = 0
    return lengths


def row_lengths(pieces: Ints, num_rows: int) -> Ints:
    """The tokens of each row."""
    lengths: Ints = np.bincount(
        pieces[:, PIECE_ROW], pieces[:, PIECE_STOP] - pieces[:, PIECE_START], num_rows
    ).astype(np.int64)
    return lengths


def list_spans(table: Ints, pieces: Ints) -> Ints:
    """The spans of pieces: int64 [pieces, 6], by `tables.SPAN_COLUMNS`."""
    spans = np.empty((len(pieces), len(SPAN_COLUMNS)), np.int64)
    spans[:, SPAN_ROW] = pieces[:, PIECE_ROW]
    spans[:, SPAN_STREAM : SPAN_SAMPLE + 1] = table[pieces[:, PIECE_DOCUMENT], STREAM : SAMPLE + 1]
    spans[:, SPAN_START:] = pieces[:, PIECE_START:]
    return spans


assert (EPOCH, SAMPLE) == (STREAM + 1, STREAM + 2)  # as in a span
