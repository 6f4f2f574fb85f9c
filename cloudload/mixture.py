"""Which stream of a mixture each row takes.

    weights a 2 · b 1 · c 1     arcs of a circle        a 0 to ½ · b ½ to ¾ · c ¾ to 1
    row g stands at g · step    60 lanes, rows 0, 1, …  0 .39 .79 .18 .57 .97 .36 .75 .15 .54 .93 .33
    so the rows are                                     a  a   c   a   b   c   a   c   a   b   c   a

A row's stream follows from its number: nothing is counted or kept. How even such a walk is depends only on its step and its
length, not on where it starts. `find_step` gives one for which every arc, so every stream of any weights, has its share ± 2 of
any 1,000 consecutive rows: of the run, which moves by `step`, and of each lane, which moves by `num_lanes · step`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.lanes import Ints

UInts = np.ndarray[Any, np.dtype[np.uint64]]
Weights = tuple[float, ...]

_TURN = 1 << 64  # the circle: points are integers that wrap around by themselves
_MOST_ROWS = 1 << 62


@dataclass(frozen=True)
class Mixture:
    """The weights of the streams, by the row from which they hold."""

    names: tuple[str, ...]
    """Of the streams."""
    schedule: tuple[tuple[int, Weights], ...]
    """(first row, weight of each stream), rows ascending from 0."""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"streams: the names are {list(self.names)}; give each of one or more streams a name of its own")
        rows = [row for row, _ in self.schedule]
        if rows[:1] != [0] or any(row >= after for row, after in zip(rows, [*rows[1:], _MOST_ROWS], strict=True)):
            raise ValueError(f"schedule: its entries start at rows {rows}; start the first at row 0, and each at a later row")
        for row, weights in self.schedule:
            self._check(row, weights)

    def _check(self, row: int, weights: Weights) -> None:
        if len(weights) != len(self.names):
            raise ValueError(f"schedule: row {row:,} has {len(weights)} weights for {len(self.names)} streams; give one for each")
        for name, weight in zip(self.names, weights, strict=True):
            if not 0 <= weight < math.inf:
                raise ValueError(f"proportion or schedule: {name!r} has weight {weight} from row {row:,}; give a number from 0 up")
        if not any(weights):
            raise ValueError(f"proportion or schedule: all weights are 0 from row {row:,}; give one stream more than 0")

    def components(self, rows: Ints, num_lanes: int) -> Ints:
        """The index of the stream that each row takes, for rows in any order."""
        rows = np.asarray(rows, np.int64)
        points = rows.astype(np.uint64) * np.uint64(find_step(num_lanes))
        entries = np.searchsorted(np.array([row for row, _ in self.schedule]), rows, side="right") - 1
        streams = np.empty(rows.shape, np.int64)
        for entry in np.unique(entries):
            chosen = entries == entry
            indices, ends = _arcs(_shares(self.schedule[entry][1]))
            streams[chosen] = indices[np.searchsorted(ends, points[chosen], side="right")]
        return streams

    def shares(self, row: int) -> tuple[float, ...]:
        """What part of the rows each stream gets at `row`."""
        return _shares(self._weights(row))

    def resume(self, saved: Mixture, row: int) -> Mixture:
        """What was `saved` for the rows before `row`, and this from then on. Streams may be added at the end."""
        if self.names[: len(saved.names)] != saved.names:
            raise StreamChangedError(
                f"streams: saved {list(saved.names)}, found {list(self.names)}. Name the saved streams first, in their order, "
                "and new ones after them; to end a stream, give it weight 0"
            )
        added = (0.0,) * (len(self.names) - len(saved.names))
        before = [(first, weights + added) for first, weights in saved.schedule if first < row]
        after = [(first, weights) for first, weights in self.schedule if first > row]
        return Mixture(self.names, _merged([*before, (row, self._weights(row)), *after]))

    def _weights(self, row: int) -> Weights:
        return self.schedule[bisect_right(self.schedule, row, key=lambda entry: entry[0]) - 1][1]

    def to_json(self) -> str:
        """As it goes into a state."""
        return json.dumps({"names": self.names, "schedule": self.schedule})

    @staticmethod
    def from_json(text: str) -> Mixture:
        """What `to_json` wrote. Raises `StreamChangedError` for anything else."""
        try:
            fields = json.loads(text)
            names, schedule = fields.pop("names"), fields.pop("schedule")
            if fields or not all(isinstance(name, str) for name in names):
                raise ValueError("it has other fields")
            return Mixture(tuple(names), tuple((_row(row), tuple(map(_weight, weights))) for row, weights in schedule))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise StreamChangedError(f"mixture: cannot read {str(text)[:200]!r}: {error}. The state is damaged") from error


def build_mixture(
    names: Sequence[str], proportions: Sequence[float], schedule: Sequence[tuple[int, Mapping[str, float]]] | None
) -> Mixture:
    """The mixture of a config: by `schedule`, in which a stream that is not named has weight 0, or else by `proportions`."""
    if schedule is None:
        return Mixture(tuple(names), ((0, tuple(map(_weight, proportions))),))
    for row, weights in schedule:
        unknown = sorted(set(weights) - set(names))
        if unknown:
            raise ValueError(f"schedule: the entry of row {row} names {unknown}, which are no streams; name some of {list(names)}")
    entries = [(_row(row), tuple(_weight(weights.get(name, 0)) for name in names)) for row, weights in schedule]
    plain = Mixture(tuple(names), tuple(entries))
    return Mixture(plain.names, _merged(plain.schedule))


def _row(row: object) -> int:
    if not isinstance(row, Integral) or isinstance(row, bool):
        raise ValueError(f"schedule: an entry starts at row {row!r}; give a whole number")
    return int(row)


def _weight(weight: object) -> float:
    if not isinstance(weight, Real) or isinstance(weight, bool):
        raise ValueError(f"proportion or schedule: a weight is {weight!r}; give a number from 0 up")
    return float(weight)


def _merged(schedule: Sequence[tuple[int, Weights]]) -> tuple[tuple[int, Weights], ...]:
    """Without the entries that change no share."""
    last = [None, *(_shares(weights) for _, weights in schedule)]
    return tuple(entry for entry, before in zip(schedule, last, strict=False) if _shares(entry[1]) != before)


@lru_cache(1024)
def _shares(weights: Weights) -> tuple[float, ...]:
    total = sum(map(Fraction, weights))
    return tuple(float(Fraction(weight) / total) for weight in weights)


@lru_cache(1024)
def _arcs(shares: tuple[float, ...]) -> tuple[Ints, UInts]:
    """The streams that have an arc, and where each arc but the last, which closes the circle, ends."""
    indices = [index for index, share in enumerate(shares) if share]
    sums = list(accumulate(Fraction(shares[index]) for index in indices))
    return np.array(indices, np.int64), np.array([_TURN * end // sums[-1] for end in sums[:-1]], np.uint64)


# ---------------------------------------------------------------- the step

_WINDOW = 1000
_UNIT = 1 << 22
_MOST_UNEVEN = 2 * _UNIT - _WINDOW  # less what the rounding to units may hide
_GRIDS = (500, 997, 998, 999, 1000, 1001, 1002, 1003)
_MOST_TRIED = 2048


@cache
def find_step(num_lanes: int) -> int:
    """The step from a row to the next, in 2⁻⁶⁴ of the circle.

    The golden ratio, best for all lengths together, strays by up to 2.65 in 1,000 rows. Steps that stray by less than 2 are rare, and lie
    just beside a fraction of 1,000 or so. So: each such fraction, moved by the little that brings the lanes' step beside such
    a fraction too. Of these, the one whose continued fraction has the smallest terms is the most even over other lengths.
    """
    steps = _candidates(num_lanes)
    strays = np.maximum(unevenness(steps), unevenness(steps * np.uint64(num_lanes)))
    even = steps[strays <= max(_MOST_UNEVEN, int(strays.min()))]
    return min(map(int, even), key=lambda step: max(_largest_term(step), _largest_term(step * num_lanes % _TURN)))


def unevenness(steps: UInts) -> Ints:
    """By how much, in `_UNIT`s of a row, the rows of any window on any arc may differ from the arc's share, for each step."""
    strays = []
    for some in np.array_split(steps, len(steps) // 64 + 1):
        points = np.sort((np.arange(_WINDOW, dtype=np.uint64) * some[:, None] >> np.uint64(42)).astype(np.int32), axis=1)
        ahead = np.arange(_WINDOW, dtype=np.int64) * _UNIT - points.astype(np.int64) * _WINDOW
        strays.append(_UNIT + ahead.max(axis=1) - ahead.min(axis=1))
    return np.concatenate(strays)
