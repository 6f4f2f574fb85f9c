"""A keyed bijection of 0 … n - 1: a permutation that can be evaluated, and inverted, one place at a
time.

It is a Feistel network on a grid of barely n cells, rows x columns: rows are moved by amounts that
depend on the column, then columns by amounts that depend on the row, and so on. Values outside the
domain are encrypted again until they fall inside (cycle walking). All randomness is 64-bit
arithmetic on keys, the same in every version of NumPy and on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.arrays import Ids, Words

ROUNDS = 8

_SMALL, _ROUNDS_OF_SMALL = np.uint64(64), 24

_AT_ONCE = 1 << 14

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

_HALF = np.uint64(32)

# ---------------------------------------------------------------- bijections


def scramble(words: Words) -> Words:
    """Mix the bits of each word, in place, one to one: SplitMix64's last steps."""
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def permute(places: Words, sizes: Words, keys: Words, *, inverse: bool = False) -> Words:
    """Where each place of 0 … size - 1 goes in the bijection of its size and key, or comes from:
    uint64 [n] each."""
    if sizes.min(initial=_SMALL) >= _SMALL:
        return _cycle_walk(places, sizes, keys, ROUNDS, inverse)
    # a small grid mixes slowly
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
    # even, for moves along odd sides alone make even permutations only
    rows = np.ceil(np.sqrt(sizes.astype(np.float64)) / 2).astype(np.uint64) * np.uint64(2)
    columns = (sizes + rows - np.uint64(1)) // rows
    row = places // columns
    column = places - row * columns
    for number in reversed(range(rounds)) if inverse else range(rounds):
        moving, fixed, size = (column, row, columns) if number % 2 else (row, column, rows)
        by = fixed * _GOLDEN
        by += keys
        by += np.uint64(number)
        scramble(by)
        by >>= _HALF
        by *= size
        by >>= _HALF
        # what goes below zero is huge, so that the lesser is the remainder
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
    """A permutation of each of consecutive groups, by the numbers of their members: [sum of
    counts], of a narrow type."""
    starts = group_starts(counts)
    permuted = np.empty(starts[-1], narrow_dtype(int(starts[-1])))
    for first in range(0, len(permuted), _AT_ONCE):
        members = np.arange(first, min(first + _AT_ONCE, len(permuted)))
        groups = np.searchsorted(starts, members, side="right") - 1
        places = permute(
            (members - starts[groups]).astype(np.uint64),
            counts[groups].astype(np.uint64),
            keys[groups],
        )
        permuted[first : first + _AT_ONCE] = starts[groups] + places.astype(np.int64)
    return permuted


def narrow_dtype(most: int) -> np.dtype[Any]:
    # uint64 and int64 would meet in a float
    return np.min_scalar_type(most) if most < 1 << 32 else np.dtype(np.int64)


def group_starts(sizes: Ids) -> Ids:
    """Where each of consecutive stretches begins, and where the last ends: int64 [sizes + 1]."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    starts[1:] = sizes
    # in place: a sum of narrow numbers would copy them first
    return np.cumsum(starts, out=starts)
