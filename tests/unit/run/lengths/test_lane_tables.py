"""A table holds the sums of the documents before every block of a lane, for any lengths."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.run.lengths.lane_tables import UNITS, LaneTables
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
