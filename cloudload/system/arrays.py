"""Array types and integer helpers that the packages share.

Ints      int64          lanes, ordinals, positions, rows, sizes
Tokens    int32          token IDs
Flags     bool           masks
Floats    float64        losses, estimates
Words     uint64         hashes, keys, and values that wrap around at 2⁶⁴
Ids       any integer    sample IDs, and other values that may have a narrow type
"""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Tokens = np.ndarray[Any, np.dtype[np.int32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Ids = np.ndarray[Any, np.dtype[Any]]

Frame = tuple[int | None, int | None]
"""The token IDs (bos, eos) around a document; None for no token."""

NEVER = 1 << 62
"""A row index or an ordinal beyond the end of any run, used as infinity."""


def count_within(sizes: Ints) -> Ints:
    """Return the index of each member within its group: int64 [members].

    `sizes` is int64 [groups]. Example: sizes 2 0 3 return 0 1 0 1 2.
    """
    within: Ints = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return within


def divisors(number: int) -> list[int]:
    """All divisors of `number`, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
