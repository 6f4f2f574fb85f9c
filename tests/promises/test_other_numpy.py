"""A version of NumPy that shuffles differently is noticed, because it would give other rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader
from cloudload.errors import StreamChangedError
from cloudload.loading.delivery.rank_checks import advise_on_difference, list_facts
from cloudload.order.order_cache import hash_fixed_order
from cloudload.system.verified_files import mark_verified
from testkit.counted import count
from testkit.loaders import ids_of, make_loader

ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive"]


@pytest.fixture
def other_numpy() -> Iterator[pytest.MonkeyPatch]:
    """Make NumPy's default generator another one, as a version of NumPy may do."""
    with pytest.MonkeyPatch.context() as patch:
        hash_fixed_order.cache_clear()
        patch.setattr(np.random, "default_rng", another_generator)
        yield patch
    hash_fixed_order.cache_clear()


def another_generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64DXSM(seed))


def read(loader: CloudLoader) -> list[Any]:
    return ids_of(loader.take(3))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_state_is_refused_by_a_numpy_that_shuffles_differently(
    larger_folder: str, algorithm: str, other_numpy: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"shuffle_algo": algorithm, "local": tmp_path}
    with make_loader(larger_folder, **options) as loader:
        other, state, rest = read(loader), loader.state_dict(), read(loader)
    with make_loader(larger_folder, **options) as loader:
        loader.load_state_dict(state)
        assert read(loader) == rest
    other_numpy.undo()
    hash_fixed_order.cache_clear()
    with make_loader(larger_folder, **options) as loader:
        assert read(loader) != other, "the cached order of the other NumPy must not be used"
        assert "order_ids" not in loader.state_dict()
        refused = f"order_ids .*found '' of NumPy {np.__version__}"
        with pytest.raises(StreamChangedError, match=refused):
            loader.load_state_dict(state)


@pytest.mark.usefixtures("other_numpy")
def test_a_state_without_the_hash_is_one_of_the_versions_so_far(larger_folder: str) -> None:
    with make_loader(larger_folder) as loader:
        state = {**loader.state_dict()}
        assert state.pop("order_ids")
        with pytest.raises(
            StreamChangedError, match=r"saved '' of a NumPy that shuffles like NumPy 1\.24 to 2\.4"
        ):
            loader.load_state_dict(state)


def test_tables_of_lengths_are_not_shared_with_a_numpy_that_shuffles_differently(
    larger_folder: str, other_numpy: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = shutil.copytree(larger_folder, tmp_path / "mds")
    count(data)
    options = {"local": tmp_path / "cache", "lengths": "require", "packing": "best_fit"}
    with make_loader(data, **options) as loader:
        loader.seek(200)
    other_numpy.undo()
    hash_fixed_order.cache_clear()
    found = []
    for lengths in ("require", "off"):
        with make_loader(data, **{**options, "lengths": lengths}) as loader:
            loader.seek(200)
            found.append(read(loader))
    assert found[0] == found[1]


def test_ranks_compare_the_first_samples_of_the_orders_that_they_read(
    larger_folder: str, tmp_path: Path
) -> None:
    def find_facts(local: Path) -> dict[str, Any]:
        with make_loader(larger_folder, local=local, dp_rank=0, dp_world_size=2) as loader:
            plan = loader.worker_plan()
            return list_facts(plan.inputs, plan.delivery, plan.share.world, plan.position)

    one, same = (find_facts(tmp_path / name) for name in ("one", "same"))
    assert one == same
    [path] = (tmp_path / "one" / "orders").rglob("epoch-0.npy")
    content = bytearray(path.read_bytes())
    content[-2400:-1200], content[-1200:] = content[-1200:], content[-2400:-1200]
    path.write_bytes(content)
    mark_verified(path)
    other = find_facts(tmp_path / "one")
    [name] = [name for name in one if one[name] != other[name]]
    assert name.startswith("order ")
    for differing in (name, "order_ids"):
        assert f"NumPy {np.__version__}" in advise_on_difference([differing])
