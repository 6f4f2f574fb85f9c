"""A background process builds the next epoch's order and table of lengths, so no rank waits for
them. It leaves no file if it is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader
from cloudload.data.cache.cache_folder import sweep
from cloudload.order import order_cache
from cloudload.order.epoch_order import OrderConfig, Sampling
from cloudload.order.order_cache import EpochOrders
from cloudload.run.lengths import lane_tables, lane_walker
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.system.file_locks import locked
from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader
from testkit.noted_calls import note_calls
from testkit.patience import soon
from testkit.reference_order import canonical_order

# ---------------------------------------------------------------- orders


SHARDS = [7, 30, 1, 12, 25, 9, 18]
AHEAD = OrderConfig(True, "py1br", 20, 4, 1)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build orders of any size in the background, even tiny ones."""
    monkeypatch.setattr("cloudload.order.order_cache.BACKGROUND_FROM_POSITIONS", 0)


def children() -> set[int]:
    """Return the IDs of this process's child processes, including zombies."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def orders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("epoch-*"))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("sampling", [None, Sampling((3, 4), (77, 60))])
def test_an_order_built_in_the_background_is_the_same_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling | None
) -> None:
    orders, before = EpochOrders(tmp_path, np.array(SHARDS), AHEAD, sampling), children()
    assert orders.build_in_background(3)
    assert not orders.build_in_background(3)
    assert soon(lambda: orders_in(tmp_path) == ["epoch-3.npy"])
    assert soon(lambda: children() <= before)
    assert not orders.build_in_background(3)
    monkeypatch.setattr(EpochOrders, "build", None)
    assert np.array_equal(orders(3), canonical_order(np.array(SHARDS), AHEAD, 3, sampling))


@pytest.mark.usefixtures("any_size")
def test_of_many_who_ask_one_builds(tmp_path: Path) -> None:
    asked = [EpochOrders(tmp_path, np.array([5_000] * 400), AHEAD) for _ in range(6)]
    assert sum(orders.build_in_background(1) for orders in asked) == 1
    assert asked[0].build_in_background(2)
    assert soon(lambda: orders_in(tmp_path) == ["epoch-1.npy", "epoch-2.npy"])


@pytest.mark.usefixtures("any_size")
def test_who_needs_an_order_that_is_being_built_waits_for_it(tmp_path: Path) -> None:
    orders = EpochOrders(tmp_path, np.array([5_000] * 400), AHEAD)
    assert orders.build_in_background(1)
    assert np.array_equal(orders(1), canonical_order(np.array([5_000] * 400), AHEAD, 1))


def test_a_daemonic_worker_may_build_ahead(tmp_path: Path) -> None:
    for method in ("fork", "spawn"):
        context: Any = multiprocessing.get_context(method)
        worker = context.Process(target=build_ahead, args=(tmp_path / method,), daemon=True)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
        assert orders_in(tmp_path / method) == ["epoch-1.npy"]


def build_ahead(folder: Path) -> None:
    order_cache.BACKGROUND_FROM_POSITIONS = 0
    assert EpochOrders(folder, np.array(SHARDS), AHEAD).build_in_background(1)
    assert soon(lambda: orders_in(folder) == ["epoch-1.npy"])


@pytest.mark.parametrize("starter", ["the training process", "a worker"])
def test_a_builder_ends_with_the_training_process_and_leaves_nothing(
    tmp_path: Path, starter: str
) -> None:
    code = f"""
import multiprocessing, os, signal, sys, time
from pathlib import Path
import numpy as np
from cloudload.order import order_cache
from cloudload.order.order_cache import EpochOrders
from cloudload.order.epoch_order import OrderConfig
folder = Path({str(tmp_path)!r})
def build():
    config = OrderConfig(True, "py1e", 20_000, 4, 1)
    assert EpochOrders(folder, np.array([5_000] * 20_000), config).build_in_background(1)
    while not list(folder.rglob("*.part")):
        time.sleep(0.01)
if {starter == "a worker"}:
    worker = multiprocessing.get_context("fork").Process(target=build)
    worker.start()
    worker.join()
    assert list(folder.rglob("*.part")), "the builder outlives the worker"
else:
    build()
os.killpg(0, signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], start_new_session=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert soon(lambda: orders_in(tmp_path) == [])


@pytest.mark.usefixtures("any_size")
def test_what_a_killed_builder_leaves_is_swept_and_the_order_is_built_when_needed(
    tmp_path: Path,
) -> None:
    sizes, before = np.array([5_000] * 1_000), children()
    orders = EpochOrders(tmp_path / "orders", sizes, AHEAD)
    assert orders.build_in_background(1)
    [builder] = children() - before
    assert soon(lambda: any(name.endswith(".part") for name in orders_in(tmp_path)))
    os.kill(builder, signal.SIGKILL)
    assert soon(lambda: children() <= before)
    assert "epoch-1.npy" not in orders_in(tmp_path)
    sweep(tmp_path)
    assert orders_in(tmp_path) == []
    assert np.array_equal(orders(1), canonical_order(sizes, AHEAD, 1))
    assert orders_in(tmp_path) == ["epoch-1.npy"]


@pytest.mark.usefixtures("any_size")
def test_nothing_is_built_ahead_where_it_cannot_be_or_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = EpochOrders(tmp_path, np.array(SHARDS), AHEAD)
    orders(0)
    assert not orders.build_in_background(0)
    [folder] = tmp_path.iterdir()
    with locked(folder / "epoch-1.npy.lock"):
        assert not orders.build_in_background(1)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert not orders.build_in_background(1)
    monkeypatch.setattr(sys, "executable", "")
    assert not orders.build_in_background(1)
    (tmp_path / "a file").write_text("")
    assert not EpochOrders(tmp_path / "a file", np.array(SHARDS), AHEAD).build_in_background(1)
    monkeypatch.undo()
    assert not orders.build_in_background(1)
    assert orders_in(tmp_path) == ["epoch-0.npy"]
    assert np.array_equal(orders(1), canonical_order(np.array(SHARDS), AHEAD, 1))


def test_a_lack_of_memory_is_named(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from cloudload.errors import CacheError
from cloudload.order.order_cache import EpochOrders
from cloudload.order.epoch_order import OrderConfig
orders = EpochOrders(Path(sys.argv[1]), np.array([10_000_000]), OrderConfig(True, "py1s", 99, 1, 1))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    orders(0)
except CacheError as error:
    print(error)
"""
    # 20 MB is too little to map the 40 MB file, and 60 MB is too little to also shuffle
    for most_bytes in (20_000_000, 60_000_000):
        printed = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), str(most_bytes)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.startswith(
            "not enough memory to build the order of epoch 0 (10,000,000 documents)"
        )
    assert orders_in(tmp_path) == []


# ---------------------------------------------------------------- tables of lengths


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store tables of any size in files, and build them in the background."""
    monkeypatch.setattr(lane_tables, "BACKGROUND_FROM_POSITIONS", 0)
    monkeypatch.setattr(lane_tables, "KEPT_FROM_POSITIONS", 0)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dataset large enough that a table covers only one epoch."""
    documents = random_documents(3, 2 * lane_tables.ENOUGH_ORDINALS + 100, max_words=6)
    return write_counted(tmp_path / "mds", documents, shard_bytes=8_000)


def tables_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("table-*"))


def open_lengths(data: str, cache: Path) -> RunLengths:
    lengths = make_loader(data, num_lanes=2, local=cache)._run.lengths
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
    monkeypatch.setattr(lane_walker, "SCANNED_WITH_TABLE", 0)
    monkeypatch.setattr(lane_walker, "SCANNED_WITHOUT", 0)
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
    lengths = make_loader(data, num_lanes=2, local=tmp_path / "cache", epochs=2)._run.lengths
    assert lengths is not None
    assert not lengths._tables[0].build_in_background(2)
    assert tables_in(tmp_path / "cache") == before
