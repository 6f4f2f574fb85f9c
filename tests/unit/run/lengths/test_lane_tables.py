"""A table holds the sums of the documents before every block of a lane, for any lengths."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.run.lengths.lane_tables import UNITS, LaneTables, TableSearch
from cloudload.run.lengths.sizes import DocumentSizes
from cloudload.stats import COUNTS, DOCUMENTS, EMPTY, TOKENS
from cloudload.system.arrays import NEVER
from testkit.tiny_runs import TinyRun

NOWHERE = Path("/dev/null")


def tables_of(run: TinyRun, folder: Path = NOWHERE, digest: str = "tiny") -> LaneTables:
    return LaneTables(folder, run.lengths.sizes[0], run.recipe.packing, digest)


@pytest.mark.parametrize(
    ("samples", "ordinals"),
    [
        (1, 8),  # 16 epochs of one document, shared by 2 lanes
        (4, 32),  # 16 epochs of 2 documents per lane
        (200, 1_100),  # enough epochs of 100 documents per lane for 1,024
        (2_000, 2_000),  # 2 epochs of 1,000
        (4_000, 2_000),  # an epoch is never divided
    ],
)
def test_a_table_covers_whole_epochs_and_about_1024_ordinals(samples: int, ordinals: int) -> None:
    tables = tables_of(TinyRun([1] * samples))
    assert tables.num_ordinals == ordinals
    assert tables.block == min(256, ordinals)


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=80), number=st.integers(0, 2))
def test_entry_b_of_a_table_is_the_sum_of_the_b_blocks_before_it(
    lengths: list[int], number: int
) -> None:
    run = TinyRun(lengths)
    tables, found = tables_of(run), run.lengths.sizes[0]
    for lane in range(2):
        ordinals = np.arange(number * tables.num_ordinals, (number + 1) * tables.num_ordinals)
        sizes = found.measure(np.full_like(ordinals, lane), ordinals).tokens.tolist()
        for block, entry in enumerate(tables[number][:, lane].tolist()):
            before = sizes[: block * tables.block]
            assert entry[UNITS] == sum(before)
            assert entry[UNITS + 1 + TOKENS] == sum(before)
            assert entry[UNITS + 1 + DOCUMENTS] == sum(size > 0 for size in before)


def test_the_last_entry_is_the_total_of_each_lane() -> None:
    tables = tables_of(TinyRun([3, 4, 0, 5]))
    assert tables[0].shape == (2, 2, 1 + len(COUNTS))
    assert tables.totals(0)[:, UNITS].tolist() == [16 * 3, 16 * 9]
    assert tables.totals(0)[:, UNITS + 1 + EMPTY].tolist() == [16, 0]
    assert tables[0][-1].tolist() == tables.totals(0).tolist()


def test_each_stream_of_a_corpus_has_its_own_columns() -> None:
    tables = tables_of(TinyRun([3, 4], [5, 6], num_lanes=1))
    assert tables.num_columns == 1 + 2 * len(COUNTS)
    [totals] = tables.totals(0).tolist()
    epochs = tables.num_ordinals // 4
    assert totals[UNITS] == 18 * epochs
    assert totals[1 + TOKENS] == 7 * epochs
    assert totals[1 + len(COUNTS) + TOKENS] == 11 * epochs


def test_a_unit_of_one_per_row_is_a_row() -> None:
    tables = tables_of(TinyRun([3, 12], num_lanes=1, packing="one_per_row", overflow="rows"))
    assert tables.totals(0)[0, UNITS] == (1 + 3) * (tables.num_ordinals // 2)


def test_a_finite_run_has_as_many_tables_as_its_longest_lane_needs() -> None:
    tables = tables_of(TinyRun([3, 4, 2], epochs=20))
    assert tables.ends.tolist() == [40, 40]
    assert tables.num_ordinals == 32
    assert tables.end == 2
    assert tables.totals(1)[:, UNITS].tolist() == [4 * 3 + 4 * 2, 4 * 4]


def test_an_endless_run_has_no_last_table() -> None:
    tables = tables_of(TinyRun([3, 4, 2]))
    assert tables.ends.tolist() == [NEVER, NEVER]
    assert tables.end is None


def test_lanes_are_barren_by_tables_as_by_their_ordinals() -> None:
    tables = tables_of(TinyRun([0] * 40))
    assert tables.num_ordinals == 320
    assert tables.is_barren(np.array([0, 1])).tolist() == [False, True]


def test_only_the_latest_tables_stay_in_memory() -> None:
    tables = tables_of(TinyRun([3, 4]))
    assert not tables.is_ready(0)
    for number in range(4):
        _ = tables[number]
    assert [tables.is_ready(number) for number in range(5)] == [True] * 4 + [False]
    _ = tables[4]
    assert [tables.is_ready(number) for number in range(5)] == [False] + [True] * 4
    assert tables.totals(0)[:, UNITS].tolist() == [3 * 16, 4 * 16]


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({"packing": "best_fit"}, True),
        ({"seq_len": 7}, True),
        ({"packing": "one_per_row"}, False),
        ({"min_tokens": 2}, False),
        ({"max_tokens": 2}, False),
        ({"frames": [(1, None)]}, False),
        ({"epochs": 3}, False),
        ({"num_lanes": 1}, False),
        ({"shuffle": True}, False),
        ({"shuffle": True, "seed": 3}, False),
        ({"shards": 2}, False),
    ],
)
def test_tables_are_shared_by_runs_with_equal_sums_only(
    options: dict[str, Any], is_shared: bool
) -> None:
    plain, other = (tables_of(TinyRun([3, 4, 2, 5], **each)) for each in ({}, options))
    assert (plain.folder == other.folder) == is_shared


def test_tables_of_other_lengths_are_in_another_folder() -> None:
    run = TinyRun([3, 4])
    assert tables_of(run).folder != tables_of(run, digest="other").folder
    assert tables_of(run).folder == tables_of(TinyRun([3, 4])).folder


def test_with_one_per_row_runs_of_another_seq_len_have_other_tables() -> None:
    runs = [TinyRun([3, 4], packing="one_per_row", seq_len=seq_len) for seq_len in (5, 6)]
    assert len({tables_of(run).folder for run in runs}) == 2


def test_a_large_table_is_written_once_and_mapped_by_others(tmp_path: Path) -> None:
    run = TinyRun([index % 7 for index in range(1 << 16)])
    first = tables_of(run, tmp_path)
    assert first.is_kept
    assert not first.is_ready(0)
    table = first[0]
    [file] = [path for path in first.folder.iterdir() if path.suffix == ".int64"]
    assert file.stat().st_size == table.nbytes
    written = file.stat().st_mtime_ns
    second = tables_of(run, tmp_path)
    assert second.is_ready(0)
    np.testing.assert_array_equal(second[0], table)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first))[0], table)
    assert file.stat().st_mtime_ns == written
    half = sum(index % 7 for index in range(0, 1 << 16, 2))
    assert table[-1, 0, UNITS] == half


# ---------------------------------------------------------------- a search through the tables


# 120 documents, 60 per lane, so a table has 960 ordinals and 4 blocks
LENGTHS = st.lists(st.integers(0, 9), min_size=12, max_size=12).map(lambda some: some * 10)


def open_search(run: TinyRun) -> tuple[LaneTables, TableSearch]:
    sizes, packing = run.lengths.sizes[0], run.recipe.packing
    tables = LaneTables(Path("/dev/null"), sizes, packing, "tiny")
    return tables, TableSearch(tables)


def units(run: TinyRun, lane: int, number: int) -> list[int]:
    """The units of a lane's first documents."""
    sizes = np.array(run.naive.documents(lane, number), np.int64)
    return list(map(int, run.recipe.packing.units_of(sizes)))


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
