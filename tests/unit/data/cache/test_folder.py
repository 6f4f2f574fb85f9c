"""The location of the default cache, and the leftover files that a sweep removes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.cache.cache_folder import default_cache, sweep
from cloudload.data.cache.kept_tokenizers import keep, kept_path
from cloudload.data.mds.open_index import INDEXES_FOLDER
from cloudload.loading.delivery.working_set import add_downloads, join_overlaps, sum_in_use
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import TAG, lock_path, make_folder


def test_the_default_cache_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("CLOUDLOAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/cloudload")


def test_a_sweep_leaves_what_is_in_use_and_what_is_not_ours(tmp_path: Path) -> None:
    folder = tmp_path / "corpus-0123456789abcdef"
    make_folder(folder)
    part = "3f2a3f2a3f2a.part"
    for name in ("a.mds", f"a.mds.{part}", "a.mds.lock", f"b.mds.{part}"):
        (folder / name).touch()
    names = (
        "orders/2024/customers.csv.part",
        "orders/x.lock",
        f"run-2024010112000000/a.{part}",
        ".x.part",
        "tokenizers/poetry.lock",
    )
    mine = [tmp_path / name for name in names]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with locked(lock_path(folder / "b.mds")):
        sweep(tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == [
            TAG,
            "a.mds",
            f"b.mds.{part}",
            "b.mds.lock",
        ]
    sweep(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [TAG, "a.mds"]
    assert all(path.exists() for path in mine)


def test_a_sweep_removes_what_a_killed_check_of_a_tokenizer_left(tmp_path: Path) -> None:
    path = kept_path(tmp_path, ["a tokenizer"], ["checks-2", "tokenizers-0.22.2"])
    keep(path, "no problem")
    left = [
        lock_path(path.with_name(f"learning-{path.name}")),
        lock_path(path),
        path.with_name(f"{path.name}.3f2a3f2a3f2a.part"),
    ]
    for each in left:
        each.touch()
    with locked(left[0]):
        sweep(tmp_path)
        assert sorted(path.parent.iterdir()) == sorted([path, left[0]])
    sweep(tmp_path)
    assert list(path.parent.iterdir()) == [path]


def test_a_sweep_removes_what_a_killed_reader_of_an_index_left(tmp_path: Path) -> None:
    folder = tmp_path / INDEXES_FOLDER
    folder.mkdir()
    table = folder / f"{'0a' * 8}-{'1b' * 16}.shards"
    left = [lock_path(table), table.with_name(f"{table.name}.3f2a3f2a3f2a.part")]
    for each in [table, *left]:
        each.touch()
    sweep(tmp_path)
    assert list(folder.iterdir()) == [table]


# ---------------------------------------------------------------- usage


Use = tuple[int, int, int]
USES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 6)), max_size=20)
SIZES = np.array([1, 10, 100, 1_000, 10_000])


@given(USES)
def test_a_shard_that_several_uses_need_at_a_row_counts_once(found: list[Use]) -> None:
    shards, firsts, lengths = np.array(found, np.int64).reshape(-1, 3).T
    joined, first, last = join_overlaps(shards, firsts, firsts + lengths)
    rows, levels = sum_in_use(first, last, SIZES[joined])
    in_use = {
        row: sum(
            SIZES[shard]
            for shard in {each for each, start, more in found if start <= row <= start + more}
        )
        for row in range(20)
    }
    assert rows.tolist() == sorted({*first.tolist(), *(last + 1).tolist()})
    for row, level in in_use.items():
        before = np.flatnonzero(rows <= row)
        assert level == (levels[before[-1]] if len(before) else 0)


def test_downloads_come_on_top_of_the_shards_in_use_up_to_all_shards() -> None:
    sizes = np.array([5, 1, 4])
    assert add_downloads(3, sizes, 1) == 3 + 5
    assert add_downloads(3, sizes, 2) == 10
