"""Any unit of a lane is found through the tables where a walk over the documents finds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.run.lengths.lane_tables import UNITS, LaneTables, TableSearch
from cloudload.run.lengths.sizes import DocumentSizes, units_of
from cloudload.stats import TOKENS
from testkit.tiny_runs import TinyRun

# 120 documents, 60 per lane, so a table has 960 ordinals and 4 blocks
LENGTHS = st.lists(st.integers(0, 9), min_size=12, max_size=12).map(lambda some: some * 10)


def open_search(run: TinyRun) -> tuple[LaneTables, TableSearch]:
    sizes, packing = run.lengths.sizes[0], run.recipe.packing
    tables = LaneTables(Path("/dev/null"), sizes, packing, "tiny")
    return tables, TableSearch(tables, sizes, packing)


def units(run: TinyRun, lane: int, number: int) -> list[int]:
    """The units of a lane's first documents."""
    sizes = np.array(run.naive.documents(lane, number), np.int64)
    return list(map(int, units_of(run.recipe.packing, sizes)))


def walk(sizes: list[int], target: int) -> tuple[int, int]:
    """The ordinal and the units into it that a walk reaches after `target` units, at least 1."""
    ordinal = 0
    while target > sizes[ordinal]:
        target -= sizes[ordinal]
        ordinal += 1
    return (ordinal + 1, 0) if target == sizes[ordinal] else (ordinal, target)


def documents(*sizes: list[int]) -> DocumentSizes:
    """Measured documents of lanes, with these sizes."""
    array = np.array(sizes)
    return DocumentSizes(np.zeros_like(array), array, array, array)


@pytest.mark.parametrize(
    ("target", "document", "into", "before"),
    [
        (1, 0, 1, 1),
        (2, 0, 2, 2),
        (3, 1, 0, 3),  # the target is the last unit of document 0, so the cursor is after it
        (4, 2, 1, 4),  # document 1 is empty
        (7, 3, 0, 7),
        (9, 3, 0, 7),  # beyond all documents
    ],
)
def test_the_cursor_after_a_unit_among_documents_of_3_0_and_4(
    target: int, document: int, into: int, before: int
) -> None:
    _, search = open_search(TinyRun([1, 1]))
    found = search.find_within(documents([3, 0, 4]), np.array([target]))
    assert [each.tolist() for each in found] == [[document], [into], [before]]


def test_each_lane_is_searched_for_its_own_target() -> None:
    _, search = open_search(TinyRun([1, 1]))
    places, into, before = search.find_within(documents([5, 5], [2, 2]), np.array([7, 2]))
    assert (places.tolist(), into.tolist(), before.tolist()) == ([1, 1], [2, 0], [7, 2])


def test_with_one_per_row_units_are_rows() -> None:
    _, search = open_search(TinyRun([1, 1], packing="one_per_row", overflow="rows"))
    places, into, before = search.find_within(documents([12, 5]), np.array([2]))
    assert (places.tolist(), into.tolist(), before.tolist()) == ([0], [2], [2])


def test_the_sums_of_the_first_documents_exclude_the_next_one() -> None:
    _, search = open_search(TinyRun([1, 1]))
    sums = search.sum_first(documents([3, 0, 4], [5, 6, 7]), np.array([2, 0]))
    assert sums[:, UNITS].tolist() == [3, 0]
    assert sums[:, 1 + TOKENS].tolist() == [3, 0]


@given(
    lengths=LENGTHS,
    ordinal=st.integers(0, 959),
    number=st.integers(0, 2),
)
def test_sums_before_a_document_are_those_of_a_walk_from_the_start_of_its_table(
    lengths: list[int], ordinal: int, number: int
) -> None:
    run = TinyRun(lengths)
    tables, search = open_search(run)
    lanes, numbers = np.array([0, 1]), np.array([number, 0])
    sums = search.sums_before(lanes, numbers, np.full(2, ordinal))
    for lane in (0, 1):
        first = int(numbers[lane]) * tables.num_ordinals
        expected = sum(units(run, lane, first + ordinal)[first:])
        assert sums[lane, [UNITS, 1 + TOKENS]].tolist() == [expected, expected]
    since = search.sums_since(0, lanes, numbers * tables.num_ordinals + ordinal)
    assert since[:, UNITS].tolist() == [
        sum(units(run, lane, int(numbers[lane]) * tables.num_ordinals + ordinal)) for lane in (0, 1)
    ]


def test_sums_since_a_later_table_leave_out_the_earlier_ones() -> None:
    run = TinyRun([3, 4, 2, 5])
    tables, search = open_search(run)
    assert tables.num_ordinals == 32
    sums = search.sums_since(1, np.array([0, 1]), np.array([65, 33]))
    assert sums[:, UNITS].tolist() == [16 * 5 + 3, 4]


@given(
    lengths=LENGTHS.filter(lambda lengths: any(lengths[::2]) and any(lengths[1::2])),
    targets=st.lists(st.integers(1, 2_000), min_size=2, max_size=2),
    packing=st.sampled_from(["concat", "one_per_row"]),
)
def test_a_unit_is_found_in_the_tables_where_a_walk_finds_it(
    lengths: list[int], targets: list[int], packing: str
) -> None:
    run = TinyRun(lengths, packing=packing, seq_len=3, overflow="rows")
    tables, search = open_search(run)
    lanes, numbers, left = np.arange(2), np.zeros(2, np.int64), np.array(targets)
    sums = np.zeros((2, tables.num_columns), np.int64)
    assert not search.pass_tables(lanes, numbers, left, sums).any()
    ordinals, into, last = search.find(lanes, numbers, left)
    for lane, target in enumerate(targets):
        most = target
        while sum(units(run, lane, most)) < target:
            most *= 2
        expected = walk(units(run, lane, most), target)
        assert (ordinals[lane], into[lane]) == expected
        before = sum(units(run, lane, expected[0]))
        assert (sums + last)[lane, UNITS] == before


def test_a_target_at_the_end_of_a_table_is_in_that_table() -> None:
    """Otherwise the cursor would pass documents without tokens that follow it."""
    run = TinyRun([3, 4, 2, 5])
    tables, search = open_search(run)
    total = 16 * 5
    numbers, targets = np.zeros(2, np.int64), np.array([total, total + 1])
    sums = np.zeros((2, tables.num_columns), np.int64)
    lanes = np.zeros(2, np.int64)
    search.pass_tables(lanes, numbers, targets, sums)
    assert numbers.tolist() == [0, 1]
    assert targets.tolist() == [total, 1]
    assert sums[:, UNITS].tolist() == [0, total]


def test_a_target_at_the_end_of_a_block_is_in_that_block() -> None:
    """Document 256 begins the next block, and has no tokens."""
    run = TinyRun([1] * 256 + [0] + [1] * 63, num_lanes=1)
    tables, search = open_search(run)
    assert tables.block == 256
    zero = np.zeros(2, np.int64)
    ordinals, into, _ = search.find(zero, zero, np.array([256, 257]))
    assert ordinals.tolist() == [256, 258]
    assert into.tolist() == [0, 0]


def test_a_finite_lane_is_dry_if_its_tables_end_before_the_target() -> None:
    run = TinyRun([3, 4, 2, 5], epochs=20)  # 2 tables, of 16 and 4 epochs
    tables, search = open_search(run)
    numbers, lanes = np.zeros(3, np.int64), np.zeros(3, np.int64)
    sums = np.zeros((3, tables.num_columns), np.int64)
    targets = np.array([99, 100, 101])
    assert search.pass_tables(lanes, numbers, targets, sums).tolist() == [False, False, True]
    assert numbers.tolist() == [1, 1, 2]


def test_an_endless_lane_is_dry_after_tables_without_tokens() -> None:
    run = TinyRun([0, 4, 0, 5])
    tables, search = open_search(run)
    sums = np.zeros((2, tables.num_columns), np.int64)
    targets = np.array([1, 200])
    is_dry = search.pass_tables(np.arange(2), np.zeros(2, np.int64), targets, sums)
    assert is_dry.tolist() == [True, False]


def test_a_table_with_tokens_ends_the_count_of_tables_without() -> None:
    """Each table holds 2 tokens in 2,000 documents, so the lane is not dry in any of them."""
    run = TinyRun([1, *[0] * 999], num_lanes=1)
    tables, search = open_search(run)
    assert tables.num_ordinals == 2_000
    sums = np.zeros((1, tables.num_columns), np.int64)
    numbers = np.zeros(1, np.int64)
    assert not search.pass_tables(np.zeros(1, np.int64), numbers, np.array([20]), sums).any()
    assert numbers.tolist() == [9]
