"""The number of rows that each lane makes of each stream, between two rows of a mixture.

    rows of lane l      at x, x + d, x + 2d, … modulo 2⁶⁴       d = num_lanes · step
    below the end h     sum of ⌊x / 2⁶⁴⌋ - ⌊(x - h) / 2⁶⁴⌋      two floor sums

Euclid's algorithm computes a floor sum in logarithmic time, so counting distant rows is just as
fast. The rows of short ranges are enumerated instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cloudload.order.mixture import TURN, Mixture, Weights, find_step, list_arcs
from cloudload.system import NEVER, Ints

# ranges of up to this many rows are enumerated
_LISTED = 1 << 22
# an upper bound on how many rows a walk of any length can be short of a stream's share
_MOST_UNEVEN = 256


def count_rows(mixture: Mixture, num_lanes: int, start: int, stop: int) -> Ints:
    """Count the rows of `start ≤ row < stop` by stream and lane: int64 [streams, lanes]."""
    num_streams = len(mixture.names)
    if num_streams == 1:
        return count_lane_rows(num_lanes, start, stop)[None]
    if stop - start <= _LISTED:
        rows = np.arange(start, stop)
        cells = mixture.components(rows, num_lanes) * num_lanes + rows % num_lanes
        counts = np.bincount(cells, minlength=num_streams * num_lanes)
        return counts.reshape(num_streams, num_lanes)
    counted = np.zeros((num_streams, num_lanes), np.int64)
    for first, after, weights in list_entries(mixture):
        low, high = max(first, start), min(after, stop)
        if low < high:
            streams, ends = list_arcs(weights)
            counted[streams] += _count_arcs(ends.tolist(), num_lanes, low, high)
    return counted


def rows_in_lanes(mixture: Mixture, num_lanes: int, start: int, rows: Ints) -> tuple[Ints, Ints]:
    """Each row's component, and its index among its lane's rows of that component since `start`.

    `rows` is int64 [rows], each at least `start`, in any order. Both results are int64 [rows].

    Example: with one component and 4 lanes, rows 4 9 are rows 1 2 of lanes 0 1, counted from row 0.
    Counted from row 3, they are rows 0 1.
    """
    if len(mixture.names) == 1:
        return np.zeros(len(rows), np.int64), (rows - start) // num_lanes
    components = mixture.components(rows, num_lanes)
    indices = [
        MixtureCounter(mixture, num_lanes, component, row % num_lanes).count(start, row)
        for row, component in zip(rows.tolist(), components.tolist(), strict=True)
    ]
    return components, np.array(indices, np.int64)


@dataclass(frozen=True)
class MixtureCounter:
    """The rows of one component, in the whole run or in one lane."""

    mixture: Mixture
    num_lanes: int
    component: int
    lane: int | None = None
    """The lane; None for the whole run."""

    def count(self, start: int, stop: int) -> int:
        """The number of the walk's rows within `start ≤ row < stop`."""
        return sum(
            self._count_in(weights, max(first, start), min(after, stop))
            for first, after, weights in list_entries(self.mixture)
            if max(first, start) < min(after, stop)
        )

    def find(self, start: int, index: int) -> int:
        """The walk's row with index `index`, counted from row `start`; `NEVER` if it has fewer."""
        left = index + 1
        for first, after, weights in list_entries(self.mixture):
            low, streams = max(first, start), list_arcs(weights)[0]
            if low >= after or self.component not in streams:
                continue
            # a walk's rows are evenly spaced, so at least `left` of them are below `high`, unless
            # the entry ends before that
            scale = sum(map(Fraction, weights)) / Fraction(weights[self.component])
            most = math.ceil((left + _MOST_UNEVEN) * scale)
            high = min(after, low + most * (1 if self.lane is None else self.num_lanes))
            if (counted := self._count_in(weights, low, high)) >= left:
                return self._bisect(weights, low, high, left) - 1
            assert high == after
            left -= counted
        return NEVER

    def _bisect(self, weights: Weights, start: int, stop: int, count: int) -> int:
        """The smallest row for which the walk has `count` rows in [`start`, row)."""
        stops = range(start + 1, stop + 1)
        return stops[bisect_left(stops, count, key=lambda row: self._count_in(weights, start, row))]

    def _count_in(self, weights: Weights, start: int, stop: int) -> int:
        """Count the walk's rows between two rows of a schedule entry with `weights`."""
        streams, ends = list_arcs(weights)
        if self.component not in streams:
            return 0
        arc = int(np.flatnonzero(streams == self.component)[0])
        bounds = [0, *ends.tolist(), TURN][arc : arc + 2]
        if self.lane is None:
            step = find_step(self.num_lanes)
            below = _count_points(bounds, start * step % TURN, step, stop - start)
        else:
            before, until = ((row - 1 - self.lane) // self.num_lanes for row in (start, stop))
            below = _count_below(bounds, self.num_lanes, self.lane, start, until - before)
        return below[1] - below[0]


def list_entries(mixture: Mixture) -> list[tuple[int, int, Weights]]:
    """The entries of a schedule, as (first row, row after the last one, weights)."""
    firsts = [first for first, _ in mixture.schedule]
    return [
        (first, after, weights)
        for first, after, (_, weights) in zip(
            firsts, [*firsts[1:], NEVER], mixture.schedule, strict=True
        )
    ]


def count_lane_rows(num_lanes: int, start: int, stop: int) -> Ints:
    """The number of rows of `start ≤ row < stop` in each lane: int64 [lanes]."""
    lanes = np.arange(num_lanes)
    counts: Ints = (stop - 1 - lanes) // num_lanes - (start - 1 - lanes) // num_lanes
    return counts


def _count_arcs(ends: list[int], num_lanes: int, start: int, stop: int) -> Ints:
    """Count rows by arc and lane: int64 [arcs, lanes]. `ends` lacks the end of the last arc."""
    counts = np.empty((len(ends) + 1, num_lanes), np.int64)
    for lane, count in enumerate(count_lane_rows(num_lanes, start, stop).tolist()):
        below = _count_below(ends, num_lanes, lane, start, count)
        counts[:, lane] = np.diff([0, *below, count])
    return counts


def _count_below(
    ends: Sequence[int], num_lanes: int, lane: int, start: int, count: int
) -> list[int]:
    """Count the points below each end among a lane's first `count` rows at or after `start`."""
    step = find_step(num_lanes)
    first = (start + (lane - start) % num_lanes) * step % TURN
    stride = num_lanes * step % TURN
    return _count_points(ends, first, stride, count)


def _count_points(ends: Sequence[int], first: int, stride: int, count: int) -> list[int]:
    """Count the first `count` points of a walk, by `stride` from `first`, that are below each end.

    Ends, `first` and `stride` are in units of 2⁻⁶⁴ of the circle.
    """
    # ⌊(x + TURN - end) / TURN⌋ exceeds ⌊x / TURN⌋ by 1 if the point x is at or after the end, so
    # the difference of the two sums counts these points
    turns = floor_sum(count, TURN, stride, first)
    return [turns - floor_sum(count, TURN, stride, first + TURN - end) + count for end in ends]


def floor_sum(count: int, modulus: int, stride: int, first: int) -> int:
    """The sum of ⌊(first + i · stride) / modulus⌋ for 0 ≤ i < number. No argument is negative.

    Swaps the roles of the modulus and the stride, as Euclid's algorithm does.
    """
    total = 0
    while True:
        # the part of `stride` that is a multiple of the modulus adds its quotient i times to term i
        turns, stride = divmod(stride, modulus)
        total += turns * (count * (count - 1) // 2)
        # that of `first` adds its quotient to each term
        turns, first = divmod(first, modulus)
        total += turns * count
        # terms now grow from 0 by at most 1. Instead of adding them, add up how many terms reach
        # each integer: a sum of the same form, with the roles swapped
        last = first + stride * count
        if last < modulus:
            return total
        count, first = divmod(last, modulus)
        modulus, stride = stride, modulus
