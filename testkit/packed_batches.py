"""Packed batches that tests write by hand, as the lengths of spans."""

from __future__ import annotations

import numpy as np

from cloudload.system.arrays import Ints

Packing = tuple[list[list[int]], int]
"""The lengths of the spans of each row, and `seq_len`, all in tokens."""


def spans(packing: Packing) -> tuple[Ints, Ints, tuple[int, int]]:
    """The row and the length of each span (int64 [spans]), and the batch's shape."""
    batch, seq_len = packing
    rows = np.array([row for row, lengths in enumerate(batch) for _ in lengths], np.int64)
    return (
        rows,
        np.array([length for lengths in batch for length in lengths], np.int64),
        (len(batch), seq_len),
    )
