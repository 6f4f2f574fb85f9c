"""A keyed bijection of 0 … n - 1: a permutation that can map, or map back, any single index.

    n = 10, a grid of 4 rows x 3 columns       0  1  2
    index 7 = row 2, column 1                  3  4  5
    round 0   row    += hash(column, key)      6 [7] 8
    round 1   column += hash(row, key)         9  ·  ·     10 and 11 are out of range: encrypt again

It is a Feistel network on a nearly square grid of at least n cells. Even rounds shift the row by a
hash of the column, and odd rounds shift the column by a hash of the row. A result of n or more is
encrypted again until it is in range (cycle walking). All randomness is 64-bit integer arithmetic on
keys, so it is the same on every machine and in every version of NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.system import Ids, Words

ROUNDS = 8
# small grids mix slowly, so they get more rounds
_SMALL, _ROUNDS_OF_SMALL = np.uint64(64), 24

CHUNK = 1 << 14
"""Number of indices to compute at a time, to bound the size of temporary arrays."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / φ, rounded to an odd integer, so its multiples are distinct and well-spread keys."""
HALF_BITS = np.uint64(32)
# the constants of SplitMix64
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def scramble(words: Words) -> Words:
    """Apply SplitMix64's finalizer, a bijection, to `words` in place, and return them.

    `words` is uint64 of any shape.
    """
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def permute(indices: Words, sizes: Words, keys: Words, *, inverse: bool = False) -> Words:
    """Map each index by the bijection that its size and key define, or by the inverse.

    `indices[i]` must be in 0 … `sizes[i]` - 1. All arrays, including the result, are uint64 [n].
    """
    if sizes.min(initial=_SMALL) >= _SMALL:
        return _cycle_walk(indices, sizes, keys, ROUNDS, inverse)
    moved, small = np.empty_like(indices), sizes < _SMALL
    for of_kind, rounds in ((small, _ROUNDS_OF_SMALL), (~small, ROUNDS)):
        moved[of_kind] = _cycle_walk(
            indices[of_kind], sizes[of_kind], keys[of_kind], rounds, inverse
        )
    return moved


def _cycle_walk(indices: Words, sizes: Words, keys: Words, rounds: int, inverse: bool) -> Words:
    moved = _feistel(indices, sizes, keys, rounds, inverse)
    while (beyond := np.flatnonzero(moved >= sizes)).size:
        moved[beyond] = _feistel(moved[beyond], sizes[beyond], keys[beyond], rounds, inverse)
    return moved


def _feistel(indices: Words, sizes: Words, keys: Words, rounds: int, inverse: bool) -> Words:
    # use an even number of rows, because two odd sides would yield only even permutations
    rows = np.ceil(np.sqrt(sizes.astype(np.float64)) / 2).astype(np.uint64) * np.uint64(2)
    columns = (sizes + rows - np.uint64(1)) // rows
    row = indices // columns
    column = indices - row * columns
    for round_index in reversed(range(rounds)) if inverse else range(rounds):
        moving, fixed, size = (column, row, columns) if round_index % 2 else (row, column, rows)
        by = fixed * GOLDEN
        by += keys
        by += np.uint64(round_index)
        scramble(by)
        by >>= HALF_BITS
        by *= size
        by >>= HALF_BITS
        # values below zero wrap around to huge ones, so the minimum is the value modulo `size`
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
    """Permute the indices within each of several consecutive groups.

    `counts` (integer [groups]) are the groups' sizes, and `keys` (uint64 [groups]) their keys.
    Returns the permuted indices, [sum of counts], with the `narrow_dtype` of that sum.
    """
    starts = group_starts(counts)
    permuted = np.empty(starts[-1], narrow_dtype(int(starts[-1])))
    for first in range(0, len(permuted), CHUNK):
        members = np.arange(first, min(first + CHUNK, len(permuted)))
        groups = np.searchsorted(starts, members, side="right") - 1
        indices = permute(
            (members - starts[groups]).astype(np.uint64),
            counts[groups].astype(np.uint64),
            keys[groups],
        )
        permuted[first : first + CHUNK] = starts[groups] + indices.astype(np.int64)
    return permuted


def narrow_dtype(most: int) -> np.dtype[Any]:
    """The narrowest of uint8, uint16, uint32 and int64 that holds 0 … `most`.

    Never uint64, because NumPy promotes a mix of uint64 and int64 to float64.
    """
    return np.min_scalar_type(most) if most < 1 << 32 else np.dtype(np.int64)


def group_starts(sizes: Ids) -> Ids:
    """The start of each consecutive group, then the end of the last group: int64 [groups + 1].

    `sizes` is integer [groups].
    """
    starts = np.zeros(len(sizes) + 1, np.int64)
    starts[1:] = sizes
    # sum in place, because NumPy would first make a wide copy of narrow `sizes`
    return np.cumsum(starts, out=starts)
