"""The stream of each row of a mixture, computed from the row's index and the weights alone.

    weights a 2 · b 1 · c 1     arcs of a circle: a from 0 to ½ · b from ½ to ¾ · c from ¾ to 1
    row g is at g · step        0 .22 .45 .67 .89 .12 .34 .56 .78 .01 .23 .45 .68 .90 .12
    so rows 0, 1, … take        a  a   a   b   c   a   a   b   c   a   a   a   b   c   a

    (with 960 lanes, the step is .223)

There are no counters and no state. Rows walk around the circle in equal steps. The evenness of a
walk depends only on its step and its length, not on its starting point. While the weights stay the
same, any 1,000 consecutive rows contain each stream's share of 1,000 ± 2, for any weights. This is
true of the run, which walks by `step`, and of each lane, which walks by `num_lanes · step`. In
shorter stretches, the run is up to 7 rows off with 960 lanes, and a lane up to 10. Both use exact
integers that wrap around at 2⁶⁴, so long runs do not drift. `find_step` searches for the step.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.system import Flags, Ints, Words

Weights = tuple[float, ...]

_MOST_ROWS = 1 << 62

TURN = 1 << 64
"""The circumference of the circle, in the units of steps and arcs."""
_WINDOW = 1000
_SCALE = 1 << 21  # fixed-point value of one row, so that positions in a window fit in 32 bits
_MOST_UNEVEN = 2 * _SCALE - _WINDOW  # 2 rows, minus the rounding error of fixed-point values
_GRIDS = (500, 997, 998, 999, 1000, 1001, 1002, 1003)
# distances of candidate steps from a fraction p / grid, in units of 1 / (1024 grid²)
_DISTANCES = np.arange(5, 32, dtype=np.int64) ** 2
_MOST_TRIED = 2048

_MOST_SHOWN = 10


@dataclass(frozen=True)
class SetWeights:
    """Weights that were set while training, in addition to those of a config."""

    config: tuple[tuple[int, Weights], ...]
    """The schedule of the config. A resume with another one drops the weights that were set."""
    schedule: tuple[tuple[int, Weights], ...]
    """The schedule of the config with the weights that were set."""


@dataclass(frozen=True)
class Mixture:
    """The weights of the streams, and the rows at which they take effect.

    Raises `ValueError` for invalid names, rows or weights.
    """

    names: tuple[str, ...]
    """The names of the streams."""
    schedule: tuple[tuple[int, Weights], ...]
    """Entries (first row, weight of each stream), with rows ascending from 0."""
    were_set: SetWeights | None = None
    """The weights that were set while training, if any."""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(
                f"streams: the names are {list(self.names)}. Pass at least one stream, and a "
                "different name for each"
            )
        rows = [row for row, _ in self.schedule]
        if rows[:1] != [0] or any(
            row >= after for row, after in zip(rows, [*rows[1:], _MOST_ROWS], strict=True)
        ):
            raise ValueError(
                f"schedule: the entries start at rows {rows}. Start the first entry at row 0, and "
                "each later entry at a higher row than the previous one, below 2^62"
            )
        for row, weights in self.schedule:
            self._check(row, weights)

    def _check(self, row: int, weights: Weights) -> None:
        if len(weights) != len(self.names):
            raise ValueError(
                f"proportion or schedule: there are {len(weights)} weights for {len(self.names)} "
                f"streams from row {row:,}. Use one weight for each stream"
            )
        for name, weight in zip(self.names, weights, strict=True):
            if not 0 <= weight < math.inf:
                raise ValueError(
                    f"proportion or schedule: {name!r} has weight {weight} from row {row:,}. Use a "
                    "finite number of at least 0"
                )
        if not any(weights):
            raise ValueError(
                f"proportion or schedule: all weights are 0 from row {row:,}. "
                "Set at least one above 0"
            )

    def components(self, rows: Ints, num_lanes: int) -> Ints:
        """The index of each row's stream: int64 [rows]. `rows` is int64 [rows], in any order."""
        rows = np.asarray(rows, np.int64)
        points = rows.astype(np.uint64) * np.uint64(find_step(num_lanes))
        entries = (
            np.searchsorted(np.array([row for row, _ in self.schedule]), rows, side="right") - 1
        )
        streams = np.empty(rows.shape, np.int64)
        for entry in np.flatnonzero(np.bincount(entries)):
            chosen = entries == entry
            indices, ends = list_arcs(self.schedule[entry][1])
            streams[chosen] = indices[np.searchsorted(ends, points[chosen], side="right")]
        return streams

    def resume(self, saved: Mixture, row: int) -> Mixture:
        """Combine the `saved` mixture for rows before `row` with this one from `row` on.

        Streams may be added at the end. Raises `StreamChangedError` if saved streams are missing,
        renamed or in a different order.
        """
        if self.names[: len(saved.names)] != saved.names:
            raise StreamChangedError(
                f"mixture: the state has streams {_show_names(saved.names, self.names)}, but the "
                f"loader has {_show_names(self.names, saved.names)}. List the saved streams first, "
                "in the same order, and add new ones at the end, also if a glob found them. "
                "To end a stream, set its proportion or weight to 0"
            )
        if saved.were_set and (self.names, self.schedule) == (saved.names, saved.were_set.config):
            kept = replace(self, schedule=saved.were_set.schedule)
            return replace(kept.resume(replace(saved, were_set=None), row), were_set=saved.were_set)
        added = (0.0,) * (len(self.names) - len(saved.names))
        before = [(first, weights + added) for first, weights in saved.schedule if first < row]
        after = [(first, weights) for first, weights in self.schedule if first > row]
        return Mixture(self.names, merge_entries([*before, (row, self.weights_at(row)), *after]))

    def set_weights(
        self, config: Mixture, weights: Mapping[str, float], row: int, at_row: int
    ) -> Mixture:
        """Return the mixture with other weights from row `at_row` on, or until the next entry.

        `config` is the mixture of the config, and `row` is the first row that is not delivered yet.
        Raises `ValueError` for an unknown stream and for invalid weights.
        """
        if not isinstance(weights, Mapping):
            raise ValueError(f"weights is {weights!r}. Use a dict of weights by stream")
        if unknown := [name for name in weights if name not in self.names]:
            raise ValueError(
                f"weights: {unknown} are not streams. Use names from {list(self.names)}"
            )
        entry = at_row, tuple(_weight(weights.get(name, 0)) for name in self.names)
        before = self.were_set or SetWeights(config.schedule, config.schedule)
        entries = dict(before.schedule) | dict([entry])
        wanted = Mixture(self.names, tuple(sorted(entries.items())))
        were_set = SetWeights(before.config, merge_entries(wanted.schedule))
        kept = replace(self, were_set=were_set)
        return config.resume(kept, row)

    def weights_at(self, row: int) -> Weights:
        return self.schedule[bisect_right(self.schedule, row, key=lambda entry: entry[0]) - 1][1]

    def to_json(self) -> str:
        """Serialize the mixture as JSON, for a state."""
        return self._json

    @cached_property
    def _json(self) -> str:
        fields: dict[str, Any] = {"names": self.names, "schedule": self.schedule}
        if self.were_set is not None:
            fields["set"] = [self.were_set.config, self.were_set.schedule]
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str) -> Mixture:
        """Parse the output of `to_json`. Raises `StreamChangedError` if it is not a mixture."""
        try:
            fields = json.loads(text)
            if not _is_mixture(fields):
                raise ValueError(
                    "it is not an object with `names` (a list of strings) and `schedule` (a list "
                    "of [row, weights])"
                )
            were_set = [_read_schedule(part) for part in fields.get("set", ())]
            return Mixture(
                tuple(fields["names"]),
                _read_schedule(fields["schedule"]),
                SetWeights(*were_set) if were_set else None,
            )
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise StreamChangedError(
                f"mixture: cannot read {str(text)[:200]!r}: {error}. The state is damaged. Load "
                "an earlier one"
            ) from error


def _show_names(names: Sequence[str], others: Sequence[str]) -> str:
    """Show the names of streams, or of many, how many there are, and some that others lack."""
    if len(names) <= _MOST_SHOWN:
        return str(list(names))
    own = [name for name in names if name not in {*others}][:_MOST_SHOWN]
    return f"{len(names):,} streams, among them {own}" if own else f"{len(names):,} streams"


def build_mixture(
    names: Sequence[str],
    proportions: Sequence[float],
    schedule: Sequence[tuple[int, Mapping[str, float]]] | None,
) -> Mixture:
    """Build the mixture of a config from `schedule`, or from `proportions` if that is None.

    A stream has weight 0 in each schedule entry that does not name it. Entries that do not change
    any share are dropped. Raises `ValueError` for an unknown stream, and for invalid names, rows or
    weights.
    """
    if schedule is None:
        return Mixture(tuple(names), ((0, tuple(map(_weight, proportions))),))
    for row, weights in schedule:
        unknown = sorted(set(weights) - set(names))
        if unknown:
            raise ValueError(
                f"schedule: the entry for row {row} names {unknown}, which are not streams. Use "
                f"names from {list(names)}"
            )
    entries = [
        (_row(row), tuple(_weight(weights.get(name, 0)) for name in names))
        for row, weights in schedule
    ]
    plain = Mixture(tuple(names), tuple(entries))
    return Mixture(plain.names, merge_entries(plain.schedule))


def _read_schedule(entries: Any) -> tuple[tuple[int, Weights], ...]:
    return tuple((_row(row), tuple(map(_weight, weights))) for row, weights in entries)


def _is_mixture(fields: Any) -> bool:
    """Whether a JSON value has the form of a mixture."""
    return (
        isinstance(fields, dict)
        and fields.keys() - {"set"} == {"names", "schedule"}
        and all(isinstance(value, list) for value in fields.values())
        and all(isinstance(name, str) for name in fields["names"])
        and len(fields.get("set", [[], []])) == 2
        and all(map(_is_schedule, [fields["schedule"], *fields.get("set", ())]))
    )


def _is_schedule(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)
        for entry in value
    )


def _row(row: object) -> int:
    if not isinstance(row, Integral) or isinstance(row, bool):
        raise ValueError(f"schedule: an entry starts at row {row!r}. Use a whole number")
    return int(row)


def _weight(weight: object) -> float:
    try:
        if isinstance(weight, Real) and not isinstance(weight, bool):
            return float(weight)
    except OverflowError:
        pass
    raise ValueError(
        f"proportion or schedule: a weight is {weight!r:.40}. Use a finite number of at least 0"
    )


def merge_entries(schedule: Sequence[tuple[int, Weights]]) -> tuple[tuple[int, Weights], ...]:
    """Drop the entries that do not change any share."""
    last = [None, *(_shares(weights) for _, weights in schedule)]
    return tuple(
        entry for entry, before in zip(schedule, last, strict=False) if _shares(entry[1]) != before
    )


def list_arcs(weights: Weights) -> tuple[Ints, Words]:
    """The indices of the n streams with a nonzero weight, and the ends of their arcs.

    Returns int64 [n] and uint64 [n - 1]. The end of the last arc is left out because it closes the
    circle.
    """
    return _arcs(_shares(weights))


@lru_cache(1024)
def _shares(weights: Weights) -> tuple[float, ...]:
    total = sum(map(Fraction, weights))
    return tuple(float(Fraction(weight) / total) for weight in weights)


@lru_cache(1024)
def _arcs(shares: tuple[float, ...]) -> tuple[Ints, Words]:
    """`list_arcs` for shares instead of weights."""
    indices = [index for index, share in enumerate(shares) if share]
    sums = list(accumulate(Fraction(shares[index]) for index in indices))
    return np.array(indices, np.int64), np.array(
        [TURN * end // sums[-1] for end in sums[:-1]], np.uint64
    )


@cache
def find_step(num_lanes: int) -> int:
    """The step from one row to the next, in units of 2⁻⁶⁴ of the circle.

        step 1/4        rows at 0 .25 .50 .75 0 .25 …     an arc of .24 gets 1 row in 4, or none
        golden ratio    deviates by up to 2.65 rows in 1,000 from an arc's share
        ours            deviates by less than 2, for the run and for each lane

    The golden ratio is even over windows of any length, but it deviates too much. The few steps
    that deviate by less than 2 rows are close to a fraction with a denominator of 500 or about
    1,000. The step returned is one of them, and so is its multiple by `num_lanes`. Among the steps
    found, it has the smallest terms in the continued fractions of the step and of this multiple, so
    the walks of the run and of its lanes are fairly even over windows of other lengths, too. A
    different choice would change the rows of every saved run with a mixture.
    """
    steps = _candidates(num_lanes)
    for stride in (1, num_lanes):
        strays = unevenness(steps * np.uint64(stride))
        steps = steps[strays <= max(_MOST_UNEVEN, int(strays.min()))]
    return min(
        map(int, steps), key=lambda step: max(_roughness(step), _roughness(step * num_lanes % TURN))
    )


def unevenness(steps: Words) -> Ints:
    """The largest deviation of the number of rows on an arc from the arc's share, for each step.

    This is the maximum over all arcs and all windows of 1,000 rows, in 1 / `_SCALE` of a row. Takes
    uint64 [steps] and returns int64 [steps]. It equals 1 row plus the spread (maximum minus
    minimum) of the differences between the sorted points and evenly spaced ones.
    """
    strays = []
    for some in np.array_split(steps, len(steps) // 64 + 1):
        # the highest 21 bits of each point, which is its position in units of 1 / `_SCALE`
        points = (np.arange(_WINDOW, dtype=np.uint64) * some[:, None] >> np.uint64(43)).astype(
            np.int32
        )
        # how far each evenly spaced point is ahead of the sorted point with the same index
        ahead = np.arange(_WINDOW, dtype=np.int32) * np.int32(_SCALE) - np.sort(
            points, axis=1
        ) * np.int32(_WINDOW)
        strays.append(_SCALE + ahead.max(axis=1).astype(np.int64) - ahead.min(axis=1))
    return np.concatenate(strays)


def _candidates(num_lanes: int) -> Words:
    """List the steps that `find_step` tries: uint64 [steps].

    A fraction is good if steps beside it are even enough (`_good_fractions`). A candidate is close
    to a good fraction, and `num_lanes` times the candidate is also close to one, modulo 1. The
    golden ratio is always the first candidate. The others are thinned evenly, so that there are at
    most `_MOST_TRIED` in all.

    Example with 960 lanes: 223/1000 is good from above, and 960 · 223/1000 = 214.08 is near
    214 + 80/999, where 80/999 is good from below. The step 223/1000 + 8.3e-8 is a candidate,
    because 960 times it is 5² / (1024 · 999²) below 214 + 80/999. `find_step` chooses this step.
    """
    found = [np.array([0x9E3779B97F4A7C15], np.uint64)]
    for (grid, side), good in _good_fractions().items():
        # a step and its negative are equally even, so half of the fractions p / grid are enough
        starts = np.flatnonzero(good[: grid // 2 + 1]).astype(np.uint64) * np.uint64(TURN // grid)
        for (lane_grid, lane_side), lane_good in _good_fractions().items():
            lane_steps = starts * np.uint64(num_lanes)
            # how far a lane's step is past the nearest q / lane_grid: times lane_grid, the fraction
            # is whole turns, which wrap around to 0, so only the distance is left
            past = (lane_steps * np.uint64(lane_grid)).view(np.int64) // lane_grid
            # q: a quarter of the spacing is added so that rounding cannot change the quotient
            nearest = (
                lane_steps - past.view(np.uint64) + np.uint64(TURN // 4 // lane_grid)
            ) // np.uint64(TURN // lane_grid)
            near = lane_good[nearest.astype(np.int64) % lane_grid]
            # move the run's step so that the lane's step is at each distance on its good side, and
            # keep the moves that put the run's step on its own good side, and close to p / grid
            moves = (
                lane_side * _DISTANCES[:, None] * (TURN // lane_grid**2 >> 10) - past[near]
            ) // num_lanes
            kept = (side * moves > 0) & (side * moves < TURN // grid**2)
            found.append((starts[near] + moves.view(np.uint64))[kept])
    steps = np.concatenate(found)
    return steps[:: len(steps) // _MOST_TRIED + 1]


@cache
def _good_fractions() -> dict[tuple[int, int], Flags]:
    """Whether steps close to p / grid are even enough, for each p: bool [grid].

    The keys are (grid, side): steps on side 1 are above the fraction, steps on side -1 below it.
    """
    good = {}
    for grid in _GRIDS:
        fractions = np.array([p for p in range(grid) if math.gcd(p, grid) == 1], np.uint64)
        beside = np.uint64(int(_DISTANCES[0]) * (TURN // grid**2 >> 10))
        flags = np.zeros(grid, np.bool_)
        flags[fractions] = unevenness(fractions * np.uint64(TURN // grid) + beside) <= 2 * _SCALE
        good[grid, 1], good[grid, -1] = flags, np.roll(flags[::-1], 1)  # -step is equally even
    return good


def _roughness(step: int) -> float:
    """The largest weighted term among the first ones of the continued fraction of `step` / 2⁶⁴.

    Later terms have less weight because they affect only longer windows.
    """
    whole, rest, rough = TURN, min(step, TURN - step), 0.0
    while whole >> 40:
        term, remainder = divmod(whole, max(rest, 1))
        rough = max(rough, term / (69 - whole.bit_length()))
        whole, rest = rest, remainder
    return rough
