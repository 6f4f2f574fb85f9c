"""Keyed bijections are invertible at any size, and produce all permutations equally often."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.bijection import (
    CHUNK,
    GOLDEN,
    group_starts,
    narrow_dtype,
    permute,
    permute_groups,
    scramble,
)

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


def test_scramble_is_the_finalizer_of_splitmix64() -> None:
    """Its values at the multiples of the golden ratio are the output of SplitMix64 with seed 0."""
    words = GOLDEN * np.arange(4, dtype=np.uint64)
    expected = [0, 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert scramble(words).tolist() == expected
    assert words.tolist() == expected, "the words are scrambled in place"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [0]),
        (10, [1, 9, 8, 0, 5, 3, 4, 6, 7, 2]),
        (63, [6, 29, 56, 2, 3, 30, 19, 37, 49, 0]),
        (64, [21, 11, 46, 3, 28, 4, 51, 58, 30, 59]),
        (100, [29, 25, 96, 93, 79, 57, 1, 53, 89, 49]),
    ],
)
def test_a_bijection_never_changes(size: int, expected: list[int]) -> None:
    key = np.array([7], np.uint64)
    assert moved(size, key, np.arange(len(expected))).tolist() == [expected]


def test_small_and_large_sizes_are_permuted_at_once_as_they_are_alone() -> None:
    sizes = [3, 64, 63, 1_000_000, 65]
    places, keys = np.array([2, 40, 40, 999_999, 0], np.uint64), keys_of(5)
    for inverse in (False, True):
        together = permute(places, np.array(sizes, np.uint64), keys, inverse=inverse)
        for index, size in enumerate(sizes):
            one = slice(index, index + 1)
            assert (
                moved(size, keys[one], places[one].astype(np.int64), inverse=inverse)[0, 0]
                == together[index]
            )


def test_no_places_are_permuted_to_none() -> None:
    none = np.empty(0, np.uint64)
    assert permute(none, none, none).tolist() == []


def test_groups_are_permuted_within_themselves() -> None:
    keys = np.array([1, 2, 3, 4], np.uint64)
    permuted = permute_groups(np.array([4, 0, 6, 1]), keys)
    assert permuted.tolist() == [0, 2, 3, 1, 7, 6, 8, 5, 4, 9, 10]
    assert permuted[:4].tolist() == moved(4, keys[:1])[0].tolist()
    assert permuted[4:10].tolist() == (4 + moved(6, keys[2:3])[0]).tolist()


def test_groups_across_a_chunk_are_permuted_as_those_within_one() -> None:
    sizes, keys = np.array([CHUNK - 3, 10, CHUNK]), keys_of(3)
    permuted = permute_groups(sizes, keys)
    assert permuted.dtype == np.uint16
    assert (permuted[CHUNK - 3 : CHUNK + 7] == CHUNK - 3 + moved(10, keys[1:2])[0]).all()
    assert (permuted[CHUNK + 7 :] == CHUNK + 7 + moved(CHUNK, keys[2:])[0]).all()


@pytest.mark.parametrize(
    ("most", "dtype"),
    [
        (0, np.uint8),
        (255, np.uint8),
        (256, np.uint16),
        (65_535, np.uint16),
        (65_536, np.uint32),
        ((1 << 32) - 1, np.uint32),
        (1 << 32, np.int64),
        (1 << 60, np.int64),
    ],
)
def test_the_narrowest_dtype_holds_the_largest_value(most: int, dtype: type) -> None:
    assert narrow_dtype(most) == dtype
    assert np.array([most], narrow_dtype(most)).tolist() == [most]


def test_groups_start_where_those_before_them_end() -> None:
    assert group_starts(np.array([3, 0, 2])).tolist() == [0, 3, 3, 5]
    assert group_starts(np.array([200, 200], np.uint8)).tolist() == [0, 200, 400]
    assert group_starts(np.array([], np.int64)).tolist() == [0]


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
