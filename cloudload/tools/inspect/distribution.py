"""Summarize sizes: minimum, median, mean and maximum, and a histogram with doubling bins.

sizes   3 5 6 7 12 40        bins   [2, 4) 1   [4, 8) 3   [8, 16) 1   [16, 32) 0   [32, 64) 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloudload.system.arrays import Ints


@dataclass(frozen=True)
class Bin:
    """The number of values from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class Distribution:
    """A summary of the distribution of non-negative integers."""

    count: int
    """Number of values."""
    least: int
    """The smallest value."""
    median: int
    """The lower median."""
    mean: float
    """The arithmetic mean."""
    most: int
    """The largest value."""
    bins: tuple[Bin, ...]
    """A histogram without gaps. A bin reaches from a power of 2 to the next one, or is [0, 1)."""

    @staticmethod
    def of(values: Ints) -> Distribution | None:
        """Compute the distribution of `values`, int64 [values]; None without values."""
        if not len(values):
            return None
        # frexp returns the bit length: 0 ─► 0, 1 ─► 1, 2 and 3 ─► 2, 4 to 7 ─► 3
        _, lengths = np.frexp(values.astype(np.float64))
        counts = np.bincount(lengths)
        first = int(lengths.min())
        bins = [
            Bin(_bin_start(length), 1 << length, count)
            for length, count in enumerate(counts[first:].tolist(), first)
        ]
        middle = (len(values) - 1) // 2
        return Distribution(
            count=len(values),
            least=int(values.min()),
            median=int(np.partition(values, middle)[middle]),
            mean=round(float(values.mean()), 1),
            most=int(values.max()),
            bins=tuple(bins),
        )


def _bin_start(length: int) -> int:
    return 1 << (length - 1) if length else 0
