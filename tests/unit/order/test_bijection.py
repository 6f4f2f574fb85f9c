"""Keyed bijections are invertible at any size, and produce all permutations equally often."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.bijection import permute, scramble

Ids = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def moved(size: int, keys: Words, places: Ids | None = None, *, inverse: bool = False) -> Ids:
    """Map `places`, by default 0 to `size` - 1, with each key. Returns int64 [keys, places]."""
    grid = np.broadcast_to(
        np.arange(size) if places is None else places,
        (len(keys), size if places is None else len(places)),
    )
    words = (grid, np.full(grid.shape, size), np.broadcast_to(keys[:, None], grid.shape))
    there = permute(*(array.astype(np.uint64).ravel() for array in words), inverse=inverse)
    return there.astype(np.int64).reshape(grid.shape)


def keys_of(number: int) -> Words:
    return scramble(np.arange(number, dtype=np.uint64) + np.uint64(77))


def test_every_size_has_bijections_that_can_be_undone() -> None:
    for size in [*range(1, 130), 1_000, 4_095, 4_097]:
        there = moved(size, keys_of(3))
        assert (np.sort(there, axis=1) == np.arange(size)).all()
        for key, row in zip(keys_of(3), there, strict=True):
            assert (
                moved(size, np.array([key], np.uint64), row, inverse=True)[0] == np.arange(size)
            ).all()


@given(
    size=st.integers(1, 1 << 40), place=st.integers(0, 1 << 40), key=st.integers(0, (1 << 64) - 1)
)
def test_a_place_of_a_huge_bijection_maps_to_a_place_and_back(
    size: int, place: int, key: int
) -> None:
    words = [np.array([number], np.uint64) for number in (place % size, size, key)]
    there = permute(*words)
    assert there[0] < size
    assert permute(there, *words[1:], inverse=True) == words[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_permutation_of_a_few_is_as_likely_as_any_other(size: int) -> None:
    number = 60_000
    codes = (moved(size, keys_of(number)) * size ** np.arange(size)).sum(axis=1)
    _, counts = np.unique(codes, return_counts=True)
    freedom = math.factorial(size) - 1
    assert len(counts) == freedom + 1
    expected = number / len(counts)
    assert chi_square(counts, np.full(len(counts), expected)) < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [64, 1_000, 20_000])
def test_where_neighbours_land_is_uniform_and_independent(size: int) -> None:
    number = 40_000
    first, second = moved(size, keys_of(number), np.array([size // 2, size // 2 + 1])).T
    cells = np.bincount(first * 8 // size * 8 + second * 8 // size, minlength=64)
    widths = np.bincount(np.arange(size) * 8 // size)
    expected = (np.outer(widths, widths) - np.diag(widths)).ravel() / (size * (size - 1)) * number
    assert chi_square(cells, expected) < 63 + 5 * math.sqrt(2 * 63)


def chi_square(counts: Ids, expected: Floats) -> float:
    return float(((counts - expected) ** 2 / expected).sum())
