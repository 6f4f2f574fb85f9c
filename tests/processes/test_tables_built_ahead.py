"""A background process builds the next epoch's table of lengths, so no rank waits for the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader
from cloudload.run.lengths import lane_tables, lane_walker
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader
from testkit.noted_calls import note_calls
from testkit.patience import soon


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store tables of any size in files, and build them in the background."""
    monkeypatch.setattr(lane_tables, "_BACKGROUND_FROM_POSITIONS", 0)
    monkeypatch.setattr(lane_tables, "_KEPT_FROM_POSITIONS", 0)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dataset large enough that a table covers only one epoch."""
    documents = random_documents(3, 2 * lane_tables._ENOUGH_ORDINALS + 100, max_words=6)
    return write_counted(tmp_path / "mds", documents, shard_bytes=8_000)


def tables_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("table-*"))


def open_lengths(data: str, cache: Path) -> RunLengths:
    lengths = make_loader(data, num_lanes=2, local=cache)._run.open_lengths()
    assert lengths is not None
    return lengths


def test_a_table_built_in_the_background_is_the_same_and_leaves_nothing_else(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [expected] = open_lengths(data, tmp_path / "one")._tables
    [ahead] = open_lengths(data, tmp_path / "two")._tables
    assert ahead.build_in_background(2)
    assert not ahead.build_in_background(2)
    assert soon(lambda: tables_in(tmp_path / "two") == ["table-2.int64"])
    assert not ahead.build_in_background(2)
    built = expected[2]
    monkeypatch.setattr(lane_tables.LaneTables, "_build", None)
    assert np.array_equal(ahead[2], built)


def test_ranks_that_enter_an_epoch_find_its_table_built(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def make(lengths: str, **rank: Any) -> CloudLoader:
        return make_loader(data, num_lanes=2, local=cache, lengths=lengths, **rank)

    epoch = make("require").count_batches()
    first = Leg(ranks=2, batch_size=2, batches=epoch * 7 // 10)
    second = Leg(ranks=2, batch_size=2, batches=epoch * 7 // 10)
    _, states = run_leg(lambda **rank: make("off", **rank), first)
    expected_rows, expected = run_leg(lambda **rank: make("off", **rank), second, states[-1])
    for table in cache.rglob("table-*"):
        table.unlink()
    run_leg(lambda **rank: make("require", **rank), first)
    assert soon(lambda: "table-1.int64" in tables_in(cache))
    # without this, the few documents between two states would be scanned without a table
    monkeypatch.setattr(lane_walker, "_SCANNED_WITH_TABLE", 0)
    monkeypatch.setattr(lane_walker, "_SCANNED_WITHOUT", 0)
    built, opened = list[int](), list[int]()
    for name, numbers in (("_build", built), ("_open", opened)):
        note_calls(monkeypatch, lane_tables.LaneTables, name, lambda _, n, to=numbers: to.append(n))
    rows, found = run_leg(lambda **rank: make("require", **rank), second, states[-1])
    assert rows == expected_rows
    assert [each["cursors"] for each in found] == [each["cursors"] for each in expected]
    assert 1 in opened
    assert 1 not in built


def test_nothing_is_built_for_one_rank_nor_after_the_end(data: str, tmp_path: Path) -> None:
    with make_loader(data, num_lanes=2, local=tmp_path / "cache") as loader:
        list(loader.take(loader.count_batches()))
    before = tables_in(tmp_path / "cache")
    assert "table-1.int64" not in before
    lengths = make_loader(data, num_lanes=2, local=tmp_path / "cache", epochs=2)._run.open_lengths()
    assert lengths is not None
    assert not lengths._tables[0].build_in_background(2)
    assert tables_in(tmp_path / "cache") == before
