"""Pieces of documents become padded rows of token IDs, and spans that name their sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.fill import Framing, fill_rows, list_spans, row_lengths
from cloudload.rows.packing.tables import (
    BASE,
    BUFFER,
    EPOCH,
    NUM_DOCUMENT_COLUMNS,
    SAMPLE,
    SIZE,
    STREAM,
    CutRows,
    ReadDocuments,
    join_documents,
    join_whole,
)
from cloudload.system.arrays import Frame, Ints

FRAMES: list[Frame] = [(1, 2), (None, 2), (None, None), (0, 0)]
"""The (bos, eos) of four streams. The IDs of the last one are 0, as in many vocabularies."""
FRAMING = Framing.of(FRAMES)
BUFFERS = [np.array(ids, np.int32).data for ids in ([10, 11, 12], [20, 21, 22, 23])]


def table(*documents: dict[int, int]) -> Ints:
    rows = np.zeros((len(documents), NUM_DOCUMENT_COLUMNS), np.int64)
    for row, columns in zip(rows, documents, strict=True):
        row[list(columns)] = list(columns.values())
    return rows


# token i is at BASE + i in its buffer. BASE is -1 if token 0 is a bos, which no buffer contains
DOCUMENTS = table(
    {STREAM: 0, EPOCH: 3, SAMPLE: 7, SIZE: 5, BASE: -1, BUFFER: 0},
    {STREAM: 1, EPOCH: 0, SAMPLE: 9, SIZE: 5, BASE: 0, BUFFER: 1},
    {STREAM: 2, SIZE: 4, BASE: 0, BUFFER: 1},
    {STREAM: 0, SIZE: 2, BASE: -1, BUFFER: 0},
    {STREAM: 3, SIZE: 4, BASE: 0, BUFFER: 1},
)
PIECES = np.array([[0, 0, 0, 5], [0, 1, 0, 3], [2, 1, 3, 5]])


def rows_of(pieces: Ints, documents: Ints = DOCUMENTS) -> CutRows:
    return CutRows(ReadDocuments(documents, BUFFERS), pieces)


def fill(pieces: list[list[int]], seq_len: int, num_rows: int) -> list[list[int]]:
    """The rows that `fill_rows` writes over old tokens, which are all -7."""
    out = np.full((num_rows, seq_len), -7, np.int32)
    fill_rows(out, rows_of(np.array(pieces, np.int64).reshape(-1, 4)), FRAMING)
    return [row.tolist() for row in out]


def test_rows_have_bos_ids_eos_and_padding() -> None:
    assert fill(PIECES.tolist(), 9, 3) == [
        [1, 10, 11, 12, 2, 20, 21, 22, 0],
        [0] * 9,
        [23, 2, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert row_lengths(PIECES, 3).tolist() == [8, 0, 2]


def test_padding_has_the_chosen_id() -> None:
    out = np.full((2, 6), -7, np.int32)
    framing = replace(Framing.of(FRAMES), pad=99)
    fill_rows(out, rows_of(np.array([[0, 0, 0, 5]])), framing)
    assert out.tolist() == [[1, 10, 11, 12, 2, 99], [99] * 6]


def test_the_lengths_of_the_rows_are_returned() -> None:
    out = np.empty((3, 9), np.int32)
    lengths = fill_rows(out, rows_of(PIECES), FRAMING)
    assert lengths.tolist() == [8, 0, 2]
    assert lengths.dtype == np.int64


def test_a_piece_has_bos_and_eos_only_at_the_ends_of_its_document() -> None:
    pieces = [[place, 0, place, place + 1] for place in range(5)]
    assert fill(pieces, 1, 5) == [[1], [10], [11], [12], [2]]


def test_a_stream_without_a_frame_has_its_text_alone() -> None:
    assert fill([[0, 2, 0, 4]], 4, 1) == [[20, 21, 22, 23]]


def test_a_document_without_a_text_is_its_bos_and_eos() -> None:
    assert fill([[0, 3, 0, 2], [0, 2, 0, 1]], 4, 1) == [[1, 2, 20, 0]]


def test_a_token_whose_id_is_0_is_a_bos_or_eos_like_any_other() -> None:
    documents = table({STREAM: 3, SIZE: 5, BASE: -1, BUFFER: 0})
    out = np.full((1, 6), -7, np.int32)
    fill_rows(out, rows_of(np.array([[0, 0, 0, 5]]), documents), FRAMING)
    assert out.tolist() == [[0, 10, 11, 12, 0, 0]]


def test_pieces_that_begin_within_documents_follow_each_other_in_a_row() -> None:
    assert fill([[0, 0, 2, 4], [0, 2, 1, 3], [0, 1, 3, 5]], 6, 1) == [[11, 12, 21, 22, 23, 2]]


def test_a_row_without_a_piece_does_not_shift_the_rows_after_it() -> None:
    assert fill([[1, 2, 0, 2], [3, 2, 2, 4]], 2, 5) == [[0, 0], [20, 21], [0, 0], [22, 23], [0, 0]]


def test_rows_without_any_piece_are_padding() -> None:
    assert fill([], 3, 2) == [[0, 0, 0], [0, 0, 0]]
    assert fill([], 3, 0) == []


def test_a_frame_without_a_token_is_minus_1_in_arrays() -> None:
    assert FRAMING.bos.tolist() == [1, -1, -1, 0]
    assert FRAMING.eos.tolist() == [2, 2, -1, 0]


def test_spans_name_stream_epoch_sample_and_tokens() -> None:
    assert list_spans(rows_of(PIECES)).tolist() == [
        [0, 0, 3, 7, 0, 5],
        [0, 1, 0, 9, 0, 3],
        [2, 1, 0, 9, 3, 5],
    ]


def test_whole_documents_in_one_row_follow_each_other() -> None:
    whole = join_whole(ReadDocuments(DOCUMENTS[[1, 3, 0]], BUFFERS))
    out = np.full((1, 12), -7, np.int32)
    fill_rows(out, whole, FRAMING)
    assert out.tolist() == [[20, 21, 22, 23, 2, 1, 2, 1, 10, 11, 12, 2]]


def test_joined_documents_keep_their_tokens() -> None:
    others = ReadDocuments(DOCUMENTS[[2]], [BUFFERS[0], np.array([30, 31, 32, 33], np.int32).data])
    joined = join_documents([ReadDocuments(DOCUMENTS[[1, 0]], BUFFERS), others])
    assert joined.table[:, BUFFER].tolist() == [1, 0, 3]
    out = np.empty((1, 14), np.int32)
    fill_rows(out, join_whole(joined), FRAMING)
    assert out.tolist() == [[20, 21, 22, 23, 2, 1, 10, 11, 12, 2, 30, 31, 32, 33]]
    assert others.table[:, BUFFER].tolist() == [1]
    assert join_documents([others]) is others
    assert len(join_documents([]).table) == 0


@pytest.mark.parametrize("num_buffers", [1, 3])
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    seq_len=st.integers(1, 7),
    streams=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_rows_hold_the_tokens_that_their_pieces_name(
    num_buffers: int, sizes: list[int], seq_len: int, streams: list[int]
) -> None:
    """`fill_rows` writes what a plain loop over the tokens of framed documents writes."""
    buffers: list[list[int]] = [[] for _ in range(num_buffers)]
    documents, texts = [], []
    for number, (size, stream) in enumerate(zip(sizes, streams, strict=False)):
        bos, eos = FRAMES[stream]
        buffer, text = buffers[number % num_buffers], [100 * number + i for i in range(1, size + 1)]
        base = len(buffer) - (bos is not None)
        buffer += text
        texts.append([*([bos] * (bos is not None)), *text, *([eos] * (eos is not None))])
        documents.append(
            {STREAM: stream, SIZE: len(texts[-1]), BASE: base, BUFFER: number % num_buffers}
        )
    pieces = [
        [number, start, min(len(text), start + seq_len // 2 + 1)]
        for number, text in enumerate(texts)
        for start in range(0, len(text), seq_len // 2 + 1)
    ]
    rows: list[list[int]] = [[]]
    placed = []
    for number, start, stop in pieces:
        if len(rows[-1]) + stop - start > seq_len:
            rows.append([])
        placed.append([len(rows) - 1, number, start, stop])
        rows[-1] += [token or 0 for token in texts[number][start:stop]]
    out = np.full((len(rows), seq_len), -7, np.int32)
    lengths = fill_rows(
        out,
        CutRows(
            ReadDocuments(table(*documents), [np.array(ids, np.int32).data for ids in buffers]),
            np.array(placed, np.int64).reshape(-1, 4),
        ),
        FRAMING,
    )
    assert lengths.tolist() == list(map(len, rows))
    assert out.tolist() == [row + [0] * (seq_len - len(row)) for row in rows]
