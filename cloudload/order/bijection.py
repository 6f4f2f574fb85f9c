"""A keyed bijection of 0 … n - 1: a permutation evaluated, or inverted, one place at a time.

    n = 10, a grid of 4 rows x 3 columns       0  1  2
    place 7 = row 2, column 1                  3  4  5
    round 0   row    += hash(column, key)      6 [7] 8
    round 1   column += hash(row, key)         9  ·  ·     10 and 11 are outside: go round again

It is a Feistel network on a nearly square grid of at least n cells: even rounds move the row by an
amount that depends on the column, odd rounds the column by one that depends on the row. A value
outside the domain is encrypted again until it falls inside (cycle walking). All randomness is
64-bit arithmetic on keys, so it is the same in every version of NumPy and on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.arrays import Ids, Words

ROUNDS = 8
# a small grid mixes slowly
_SMALL, _ROUNDS_OF_SMALL = np.uint64(64), 24

CHUNK = 1 << 14
"""Places computed at a time, to bound temporary arrays."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / φ: multiples of it make distinct, well-spread keys."""
HALF_BITS = np.uint64(32)
# SplitMix64
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def scramble(words: Words) -> Words:
    """Mix the bits of each word in place, one to one: SplitMix64's finalizer. uint64, any shape."""
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def permute(places: Words, sizes: Words, keys: Words, *, inverse: bool = False) -> Words:
    """Map each place in 0 … size - 1 by the bijection of its size and key, or by its inverse.

    All arrays are uint64 [n].
    """
    if sizes.min(initial=_SMALL) >= _SMALL:
        return _cycle_walk(places, sizes, keys, ROUNDS, inverse)
    moved, small = np.empty_like(places), sizes < _SMALL
    for of_kind, rounds in ((small, _ROUNDS_OF_SMALL), (~small, ROUNDS)):
        moved[of_kind] = _cycle_walk(
            places[of_kind], sizes[of_kind], keys[of_kind], rounds, inverse
        )
    return moved


def _cycle_walk(places: Words, sizes: Words, keys: Words, rounds: int, inverse: bool) -> Words:
    moved = _feistel(places, sizes, keys, rounds, inverse)
    while (beyond := np.flatnonzero(moved >= sizes)).size:
        moved[beyond] = _feistel(moved[beyond], sizes[beyond], keys[beyond], rounds, inverse)
    return moved


def _feistel(places: Words, sizes: Words, keys: Words, rounds: int, inverse: bool) -> Words:
    # the number of rows is even, because moves along sides of odd length are even permutations only
    rows = np.ceil(np.sqrt(sizes.astype(np.float64)) / 2).astype(np.uint64) * np.uint64(2)
    columns = (sizes + rows - np.uint64(1)) // rows
    row = places // columns
    column = places - row * columns
    for number in reversed(range(rounds)) if inverse else range(rounds):
        moving, fixed, size = (column, row, columns) if number % 2 else (row, column, rows)
        by = fixed * GOLDEN
        by += keys
        by += np.uint64(number)
        scramble(by)
        by >>= HALF_BITS
        by *= size
        by >>= HALF_BITS
        # values below zero wrap to huge ones, so the minimum is the remainder
        if inverse:
            moving -= by
            np.minimum(moving, moving + size, out=moving)
        else:
            moving += by
            np.minimum(moving, moving - size, out=moving)
    row *= columns
    row += column
    crossed: Words = row
    return crossed


def permute_groups(counts: Ids, keys: Words) -> Ids:
    """Permute the members of each of several consecutive groups.

    `counts` is integer [groups], `keys` is uint64 [groups]. Returns an array [sum of counts] of
    the narrowest integer type that fits.
    """
    starts = group_starts(counts)
    permuted = np.empty(starts[-1], narrow_dtype(int(starts[-1])))
    for first in range(0, len(permuted), CHUNK):
        members = np.arange(first, min(first + CHUNK, len(permuted)))
        groups = np.searchsorted(starts, members, side="right") - 1
        places = permute(
            (members - starts[groups]).astype(np.uint64),
            counts[groups].astype(np.uint64),
            keys[groups],
        )
        permuted[first : first + CHUNK] = starts[groups] + places.astype(np.int64)
    return permuted


def narrow_dtype(most: int) -> np.dtype[Any]:
    """The narrowest integer type that holds `most`.

    Never uint64, which NumPy promotes to float when mixed with int64.
    """
    return np.min_scalar_type(most) if most < 1 << 32 else np.dtype(np.int64)


def group_starts(sizes: Ids) -> Ids:
    """The start of each of several consecutive groups, and the last end: int64 [sizes + 1]."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    starts[1:] = sizes
    # in place, because NumPy would first copy narrow integers
    return np.cumsum(starts, out=starts)
