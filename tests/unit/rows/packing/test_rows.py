"""Pieces of documents become padded rows of token IDs, and spans that name their sources."""

from __future__ import annotations

import numpy as np

from cloudload.rows.packing.fill import Framing, fill_rows, list_spans, row_lengths
from cloudload.rows.packing.tables import (
    BASE,
    BUFFER,
    EPOCH,
    NUM_DOCUMENT_COLUMNS,
    SAMPLE,
    SIZE,
    STREAM,
)

FRAMING = Framing.of([(1, 2), (None, 2), (None, None)])
BUFFERS = [np.array(ids, np.int32).data for ids in ([10, 11, 12], [20, 21, 22, 23])]


def table(*documents: dict[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    rows = np.zeros((len(documents), NUM_DOCUMENT_COLUMNS), np.int64)
    for row, columns in zip(rows, documents, strict=True):
        row[list(columns)] = list(columns.values())
    return rows


# token i is at BASE + i in its buffer. BASE is -1 if token 0 is a bos, which no buffer contains
DOCUMENTS = table(
    {STREAM: 0, EPOCH: 3, SAMPLE: 7, SIZE: 5, BASE: -1, BUFFER: 0},
    {STREAM: 1, EPOCH: 0, SAMPLE: 9, SIZE: 5, BASE: 0, BUFFER: 1},
    {STREAM: 2, SIZE: 4, BASE: 0, BUFFER: 1},
)
PIECES = np.array([[0, 0, 0, 5], [0, 1, 0, 3], [2, 1, 3, 5]])


def fill(pieces: list[list[int]], seq_len: int, num_rows: int) -> list[list[int]]:
    out = np.full((num_rows, seq_len), -7, np.int32)
    fill_rows(out, DOCUMENTS, BUFFERS, np.array(pieces, np.int64).reshape(-1, 4), FRAMING)
    return [row.tolist() for row in out]


def test_rows_have_bos_ids_eos_and_padding() -> None:
    assert fill(PIECES.tolist(), 9, 3) == [
        [1, 10, 11, 12, 2, 20, 21, 22, 0],
        [0] * 9,
        [23, 2, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert row_lengths(PIECES, 3).tolist() == [8, 0, 2]


def test_a_piece_has_bos_and_eos_only_at_the_ends_of_its_document() -> None:
    pieces = [[place, 0, place, place + 1] for place in range(5)]
    assert fill(pieces, 1, 5) == [[1], [10], [11], [12], [2]]


def test_a_stream_without_a_frame_has_its_text_alone() -> None:
    assert fill([[0, 2, 0, 4]], 4, 1) == [[20, 21, 22, 23]]


def test_spans_name_stream_epoch_sample_and_tokens() -> None:
    assert list_spans(DOCUMENTS, PIECES).tolist() == [
        [0, 0, 3, 7, 0, 5],
        [0, 1, 0, 9, 0, 3],
        [2, 1, 0, 9, 3, 5],
    ]
