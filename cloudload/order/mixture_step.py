"""The step of a mixture: how far each row advances around the circle of streams.

    step 1/4        rows at 0 .25 .50 .75 0 .25 …     an arc of .24 gets 1 row in 4, or none
    golden ratio    deviates by up to 2.65 rows in 1,000 from an arc's share
    ours            deviates by less than 2, for the run and for each lane

The search tries steps close to fractions p / grid, where grid is 500 or about 1,000. Among those
that are even enough, it picks the one whose continued fractions have the smallest terms.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from cloudload.system.arrays import Flags, Ints, Words

TURN = 1 << 64
"""The circumference of the circle, in the units of steps and arcs."""
_WINDOW = 1000
_SCALE = 1 << 21  # fixed-point value of one row, so that positions in a window fit in 32 bits
_MOST_UNEVEN = 2 * _SCALE - _WINDOW  # 2 rows, minus the rounding error of fixed-point values
_GRIDS = (500, 997, 998, 999, 1000, 1001, 1002, 1003)
# distances of candidate steps from a fraction p / grid, in units of 1 / (1024 grid²)
_DISTANCES = np.arange(5, 32, dtype=np.int64) ** 2
_MOST_TRIED = 2048


@cache
def find_step(num_lanes: int) -> int:
    """The step from one row to the next, in units of 2⁻⁶⁴ of the circle.

    The golden ratio is even over windows of any length, but deviates by up to 2.65 rows in 1,000.
    The few steps that deviate by less than 2 rows are close to a fraction with a denominator of 500
    or about 1,000. The step returned is one of them, and so is its multiple by `num_lanes`. Among
    the steps found, it has the smallest terms in the continued fractions of the step and of this
    multiple, so the walks of the run and of its lanes are fairly even over windows of other
    lengths, too. A different choice would change the rows of every saved run with a mixture.
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
        points = (np.arange(_WINDOW, dtype=np.uint64) * some[:, None] >> np.uint64(43)).astype(
            np.int32
        )
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
        starts = np.flatnonzero(good[: grid // 2 + 1]).astype(np.uint64) * np.uint64(TURN // grid)
        for (lane_grid, lane_side), lane_good in _good_fractions().items():
            lane_steps = starts * np.uint64(num_lanes)
            past = (lane_steps * np.uint64(lane_grid)).view(np.int64) // lane_grid
            nearest = (
                lane_steps - past.view(np.uint64) + np.uint64(TURN // 4 // lane_grid)
            ) // np.uint64(TURN // lane_grid)
            near = lane_good[nearest.astype(np.int64) % lane_grid]
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
