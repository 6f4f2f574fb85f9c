"""The order of an epoch is built once per folder, is verified, and equals that built in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloudload.errors import CacheError
from cloudload.order.order_cache import EpochOrders
from cloudload.order.spec import OrderConfig, Sampling
from cloudload.system.verified_files import mark_verified
from testkit.reference_order import canonical_order

SHARDS = [7, 30, 1, 12, 25, 9, 18]


def test_an_order_on_disk_is_the_one_in_memory_and_is_built_once(tmp_path: Path) -> None:
    config = OrderConfig(True, "py1e", 20, 4, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config)
    for epoch in (0, 1, 5):
        assert np.array_equal(orders(epoch), canonical_order(np.array(SHARDS), config, epoch))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert (
        np.asarray(EpochOrders(tmp_path, np.array(SHARDS), config)(5)).tolist()
        == np.asarray(orders(5)).tolist()
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == written
    other = EpochOrders(tmp_path, np.array(SHARDS), OrderConfig(True, "py1e", 20, 4, 2))
    assert not np.array_equal(other(5), orders(5))


def test_orders_without_sampling_keep_their_folder_and_orders_with_it_have_another(
    tmp_path: Path,
) -> None:
    shards, config = np.array([7, 30, 1]), OrderConfig(True, "py1e", 20, 4, 1)
    EpochOrders(tmp_path, shards, config)(0)
    assert [path.parent.name for path in tmp_path.rglob("*.npy")] == ["8f2a2d9e0607ffa4b5f2ec7c"]
    for sampling in (
        Sampling((2, 1), (20, 1)),
        Sampling((1, 2), (20, 1)),
        Sampling((2, 1), (21, 1)),
    ):
        order = EpochOrders(tmp_path, shards, config, sampling)(0)
        assert np.array_equal(order, canonical_order(shards, config, 0, sampling))
    assert len(list(tmp_path.rglob("*.npy"))) == 4


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", "seekable", None])
@pytest.mark.parametrize("sampling", [None, Sampling((3, 4), (77, 60))])
def test_the_order_of_a_run_is_the_one_in_memory(
    tmp_path: Path, algorithm: str | None, sampling: Sampling | None
) -> None:
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, 4, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config, sampling)
    for epoch in (0, 1):
        assert np.array_equal(
            orders(epoch), canonical_order(np.array(SHARDS), config, epoch, sampling)
        )


def test_threads_may_open_orders_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading an order must not call `ast.parse`, as `np.load` would.

    `ast.parse` is not thread-safe in some versions of Python 3.11.
    """
    config = OrderConfig(True, "py1s", 20, 1, 1)
    for number, sizes in enumerate([[7, 30], [40_000]]):
        orders = EpochOrders(tmp_path / str(number), np.array(sizes), config)
        monkeypatch.setattr("ast.parse", None)
        assert np.array_equal(orders(0), canonical_order(np.array(sizes), config, 0))
        found = EpochOrders(tmp_path / str(number), np.array(sizes), config)(0)
        assert np.array_equal(found, orders(0))
        monkeypatch.undo()


def test_old_orders_go(tmp_path: Path) -> None:
    orders = EpochOrders(tmp_path, np.array([40_000]), OrderConfig(True, "py1s", 20, 1, 1))
    for epoch in range(5):
        orders(epoch)
    assert orders_in(tmp_path) == ["epoch-2.npy", "epoch-3.npy", "epoch-4.npy"]


@pytest.mark.parametrize("damage", ["changed", "cut", "emptied"])
def test_an_order_that_was_written_to_is_built_again(tmp_path: Path, damage: str) -> None:
    config = OrderConfig(True, "py1s", 20, 1, 1)
    expected = np.array(EpochOrders(tmp_path, np.array([40_000]), config)(0))
    [path] = tmp_path.rglob("epoch-0.npy")
    whole = path.read_bytes()
    path.write_bytes(
        {"changed": whole[:-4] + whole[-8:-4], "cut": whole[:-4], "emptied": b""}[damage]
    )
    assert np.array_equal(EpochOrders(tmp_path, np.array([40_000]), config)(0), expected)


@pytest.mark.parametrize("kept_bytes", [0, 5, 60, -4])
@pytest.mark.parametrize("size", [100, 40_000])
def test_an_order_that_is_too_short_is_built_again_though_it_is_marked_as_verified(
    tmp_path: Path, size: int, kept_bytes: int
) -> None:
    config = OrderConfig(True, "py1s", 20, 1, 1)
    expected = np.array(EpochOrders(tmp_path, np.array([size]), config)(0))
    [path] = tmp_path.rglob("epoch-0.npy")
    path.write_bytes(path.read_bytes()[:kept_bytes])
    mark_verified(path)
    assert np.array_equal(EpochOrders(tmp_path, np.array([size]), config)(0), expected)


def test_an_order_that_cannot_be_read_is_a_cache_error(tmp_path: Path) -> None:
    orders = EpochOrders(tmp_path, np.array([100]), OrderConfig(True, "py1s", 20, 1, 1))
    orders(0)
    [path] = tmp_path.rglob("epoch-0.npy")
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(CacheError, match=r"cannot write the order of epoch 0 .*Is a directory"):
        EpochOrders(tmp_path, np.array([100]), OrderConfig(True, "py1s", 20, 1, 1))(0)


@pytest.mark.parametrize("size", [100, 40_000])
def test_orders_are_read_only(tmp_path: Path, size: int) -> None:
    orders = EpochOrders(tmp_path, np.array([size]), OrderConfig(True, "py1s", 20, 1, 1))
    assert not np.asarray(orders(0)).flags.writeable


def test_a_lack_of_memory_is_named(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from cloudload.errors import CacheError
from cloudload.order.order_cache import EpochOrders
from cloudload.order.spec import OrderConfig
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


def test_a_full_disk_is_an_error_and_leaves_no_order(small_disk: Path) -> None:
    orders = EpochOrders(small_disk, np.array([50_000]), OrderConfig(True, "py1e", 20, 4, 1))
    with pytest.raises(
        CacheError, match=r"cannot write the order of epoch 0 \(50,000 documents\).*No space left"
    ):
        orders(0)
    assert orders_in(small_disk) == []


def orders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("epoch-*"))
