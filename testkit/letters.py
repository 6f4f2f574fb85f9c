"""Documents and rows of lanes as text, a letter per token, so that a test reads like a drawing."""

from __future__ import annotations

import numpy as np

from cloudload.rows.packing.fill import Framing, fill_rows
from cloudload.rows.packing.tables import (
    BASE,
    COUNT,
    FLAT_LANE,
    NUM_DOCUMENT_COLUMNS,
    ORDINAL,
    SAMPLE,
    SIZE,
    CutRows,
    ReadDocuments,
)
from cloudload.stats import DOCUMENTS, EMPTY

_NO_FRAME = Framing.of([(None, None)])


def letters(*documents: tuple[int, int, str]) -> ReadDocuments:
    """Documents (flat lane, ordinal, text) of one stream without bos and eos."""
    table = np.zeros((len(documents), NUM_DOCUMENT_COLUMNS), np.int64)
    for row, (flat_lane, ordinal, text) in zip(table, documents, strict=True):
        row[[FLAT_LANE, ORDINAL, SAMPLE, SIZE]] = flat_lane, ordinal, ordinal, len(text)
        row[COUNT] = DOCUMENTS if text else EMPTY
    table[:, BASE] = np.cumsum(table[:, SIZE]) - table[:, SIZE]
    ids = [ord(letter) for _, _, text in documents for letter in text]
    return ReadDocuments(table, [np.array(ids, np.int32).data])


def spell(cut: CutRows, seq_len: int, num_rows: int | None = None) -> list[str]:
    """The text of each row; by default, of those cut from lanes. Padding is a dot."""
    num_rows = len(cut.cursors) if num_rows is None else num_rows
    out = np.empty((num_rows, seq_len), np.int32)
    fill_rows(out, cut, _NO_FRAME)
    return ["".join(chr(token) if token else "." for token in row) for row in out.tolist()]
