"""The order of an epoch is built once per folder, is verified, and equals that built in memory.

The order of fixed shards tells a NumPy that shuffles differently from all versions so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloudload.errors import CacheError
from cloudload.order import epoch_order, order_cache
from cloudload.order.epoch_order import OrderConfig, Sampling
from cloudload.order.order_cache import EpochOrders, hash_fixed_order, identify_order
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
    orders = EpochOrders(tmp_path, np.array([400_000]), OrderConfig(True, "py1s", 20, 1, 1))
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


def test_a_full_disk_is_an_error_and_leaves_no_order(small_disk: Path) -> None:
    orders = EpochOrders(small_disk, np.array([50_000]), OrderConfig(True, "py1e", 20, 4, 1))
    with pytest.raises(
        CacheError, match=r"cannot write the order of epoch 0 \(50,000 documents\).*No space left"
    ):
        orders(0)
    assert orders_in(small_disk) == []


@pytest.mark.parametrize("algorithm", ["py1s", "seekable"])
def test_samples_of_many_epochs_are_looked_up_at_once(tmp_path: Path, algorithm: str) -> None:
    orders = EpochOrders(tmp_path, np.array(SHARDS), OrderConfig(True, algorithm, 20, 4, 1))
    epochs, positions = np.array([3, 0, 3, 1]), np.array([101, 0, 5, 7])
    samples = orders.samples_at(epochs, positions)
    assert samples.tolist() == [orders(3)[101], orders(0)[0], orders(3)[5], orders(1)[7]]
    assert samples.dtype == np.int64


def test_an_order_stays_in_memory_while_its_lanes_may_read_it(tmp_path: Path) -> None:
    """Two epochs before the current one are kept, and many of small data."""
    large, small = (
        EpochOrders(tmp_path, np.array([size]), OrderConfig(True, "py1s", 20, 1, 1))
        for size in (400_000, 40_000)
    )
    for orders, kept in ((large, [4, 3, 2]), (small, [4, 3, 2, 1, 0])):
        first = [orders(epoch) for epoch in range(5)]
        assert [epoch for epoch in (4, 3, 2, 1, 0) if orders(epoch) is first[epoch]] == kept


def test_an_order_that_is_quick_to_build_is_never_built_ahead(tmp_path: Path) -> None:
    for algorithm, size in (("py1s", (1 << 20) - 1), ("seekable", 1 << 30)):
        orders = EpochOrders(tmp_path, np.array([size]), OrderConfig(True, algorithm, 20, 1, 1))
        assert orders.is_ready(5)
        assert not orders.build_in_background(5)
    slow = EpochOrders(tmp_path, np.array([1 << 20]), OrderConfig(True, "py1s", 20, 1, 1))
    assert not slow.is_ready(5)


def orders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("epoch-*"))


# ---------------------------------------------------------------- other versions of NumPy

ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive"]
SAMPLING = Sampling((1,), (9,))


@pytest.fixture
def _other_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make NumPy's default generator another one, as a version of NumPy may do."""

    def another(seed: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64DXSM(seed))

    hash_fixed_order.cache_clear()
    monkeypatch.setattr(np.random, "default_rng", another)
    yield
    hash_fixed_order.cache_clear()


def identify(algorithm: str, sampling: Sampling | None, *, shuffle: bool = True) -> str:
    return identify_order(OrderConfig(shuffle, algorithm, 999, 9, 9), sampling)


@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["plain", "sampled"])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "seekable"])
def test_the_order_of_this_numpy_needs_no_name(algorithm: str, sampling: Sampling | None) -> None:
    assert identify(algorithm, sampling) == identify(algorithm, sampling, shuffle=False) == ""


@pytest.mark.usefixtures("_other_numpy")
def test_every_order_of_another_numpy_has_a_name_of_its_own() -> None:
    names = [identify(algorithm, each) for algorithm in ALGORITHMS for each in (None, SAMPLING)]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 for name in names)


@pytest.mark.usefixtures("_other_numpy")
def test_without_shuffle_only_drawn_samples_depend_on_numpy() -> None:
    assert identify("py1e", None, shuffle=False) == ""
    assert identify("py1e", SAMPLING, shuffle=False) == identify("py1s", SAMPLING, shuffle=False)
    assert identify("py1e", SAMPLING, shuffle=False) != ""


@pytest.mark.usefixtures("_other_numpy")
def test_a_seekable_order_is_the_same_in_every_numpy() -> None:
    assert identify("seekable", None) == identify("seekable", SAMPLING) == ""


def test_a_hash_is_of_the_algorithm_and_of_whether_samples_are_drawn() -> None:
    hashes = {hash_fixed_order(name, sampled) for name in ALGORITHMS for sampled in (False, True)}
    assert len(hashes) == 10
    assert hash_fixed_order("py1e", False) == "46cecfe87156a68d"
    assert hash_fixed_order("seekable", True) == "46025a6ae0a8121c"
    assert hash_fixed_order("", False) == "156945f6db3cab90"


@pytest.mark.parametrize("algorithm", ["py1e", "py1s"])
def test_the_first_samples_of_py1e_do_not_wait_for_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(order_cache, "BACKGROUND_FROM_POSITIONS", 1)
    monkeypatch.setattr(epoch_order, "_MOST_ROUNDS", 3)
    config = OrderConfig(True, algorithm, 20, 4, 1)
    expected = canonical_order(np.array(SHARDS), config, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config)
    for positions, is_built in (([11, 0, 5], algorithm == "py1s"), ([12, 3], True), ([1], True)):
        found = orders.find(1, np.array(positions))
        assert found.tolist() == expected[positions].tolist()
        assert bool(list(tmp_path.rglob("*.npy"))) == is_built
