"""The step of a mixture: how far round the circle of streams each row lies from the one before
it."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from cloudload.arrays import Flags, Ints, Words

TURN = 1 << 64  # the whole circle

# ---------------------------------------------------------------- the step

_WINDOW = 1000

_UNIT = 1 << 21  # of a row: what lies within a window then fits 32 bits

_MOST_UNEVEN = 2 * _UNIT - _WINDOW  # less what rounding to units may hide

_GRIDS = (500, 997, 998, 999, 1000, 1001, 1002, 1003)

_DISTANCES = np.arange(5, 32, dtype=np.int64) ** 2  # from a fraction, in 1 / (1024 grid²)

_MOST_TRIED = 2048


@cache
def find_step(num_lanes: int) -> int:
    """The step from a row to the next, in 2⁻⁶⁴ of the circle.

    The golden ratio is even over all lengths, but strays by up to 2.65 in 1,000 rows. The few steps
    that stray by less than 2 lie just beside a fraction of about 1,000. This one does, and so does
    its `num_lanes`-fold. Of the steps found it is the one with the smoothest continued fractions,
    which makes it even over other lengths, too. Another choice would change every saved run.
    """
    steps = _candidates(num_lanes)
    for stride in (1, num_lanes):
        strays = unevenness(steps * np.uint64(stride))
        steps = steps[strays <= max(_MOST_UNEVEN, int(strays.min()))]
    return min(
        map(int, steps), key=lambda step: max(_roughness(step), _roughness(step * num_lanes % TURN))
    )


def unevenness(steps: Words) -> Ints:
    """For each step, by how much a window's rows on an arc may differ from the arc's share: the
    most over all windows and arcs, in `_UNIT`s of a row. (For sorted points, that is 1 and by how
    much more they run ahead of an even spread here than there.)"""
    strays = []
    for some in np.array_split(steps, len(steps) // 64 + 1):
        points = (np.arange(_WINDOW, dtype=np.uint64) * some[:, None] >> np.uint64(43)).astype(
            np.int32
        )
        ahead = np.arange(_WINDOW, dtype=np.int32) * np.int32(_UNIT) - np.sort(
            points, axis=1
        ) * np.int32(_WINDOW)
        strays.append(_UNIT + ahead.max(axis=1).astype(np.int64) - ahead.min(axis=1))
    return np.concatenate(strays)


def _candidates(num_lanes: int) -> Words:
    """Steps beside good fractions of which the lanes' steps are beside good ones, too; every n-th
    of them where they are many."""
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
    """For each grid, and side of its fractions p / grid: at which p a step just beside is even
    enough."""
    good = {}
    for grid in _GRIDS:
        fractions = np.array([p for p in range(grid) if math.gcd(p, grid) == 1], np.uint64)
        beside = np.uint64(int(_DISTANCES[0]) * (TURN // grid**2 >> 10))
        flags = np.zeros(grid, np.bool_)
        flags[fractions] = unevenness(fractions * np.uint64(TURN // grid) + beside) <= 2 * _UNIT
        good[grid, 1], good[grid, -1] = flags, np.roll(flags[::-1], 1)  # a walk back is as even
    return good


def _roughness(step: int) -> float:
    """The largest term of the continued fraction of `step` / 2⁶⁴; later ones, which tell of longer
    windows, weigh less."""
    whole, rest, rough = TURN, min(step, TURN - step), 0.0
    while whole >> 40:
        term, remainder = divmod(whole, max(rest, 1))
        rough = max(rough, term / (69 - whole.bit_length()))
        whole, rest = rest, remainder
    return rough
