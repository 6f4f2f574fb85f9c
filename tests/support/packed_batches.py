"""A handwritten packed batch."""

from __future__ import annotations

import numpy as np

from cloudload.arrays import Ints

Packing = tuple[list[list[int]], int]
"""The lengths of each row's spans, and seq_len."""


def spans(packing: Packing) -> tuple[Ints, Ints, tuple[int, int]]:
    """The columns and the shape, as arguments for the functions."""
    batch, seq_len = packing
    rows = np.array([row for row, lengths in enumerate(batch) for _ in lengths], np.int64)
    return (
        rows,
        np.array([length for lengths in batch for length in lengths], np.int64),
        (len(batch), seq_len),
    )
