"""A process finds its data-parallel rank from arguments, the environment, or a mesh."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudload.loading.delivery.world import (
    check_world,
    default_num_workers,
    explain_few_cores,
    find_world,
    rank_in_mesh,
)
from cloudload.order import World
from testkit.loaders import make_loader


def test_a_world_that_does_not_divide_the_lanes_hears_which_would() -> None:
    check_world(12, 6, has_lengths=False)
    check_world(12, 5, has_lengths=True)
    with pytest.raises(
        ValueError,
        match=r"5 ranks cannot share 12 lanes evenly\. Use 4 or 6 ranks, .* num_lanes=10, or run",
    ):
        check_world(12, 5, has_lengths=False)
    with pytest.raises(ValueError, match=r"Use 12 ranks, .* num_lanes=25, or run"):
        check_world(12, 25, has_lengths=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World(0, 1, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, World(5, 8, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, World(1, 2, 2)),
    ],
)
def test_the_world_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: World
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_world() == expected
    assert find_world(1, 2).size == 2


@pytest.mark.parametrize(
    ("processes", "per_node", "dp_world_size", "expected"),
    [
        (16, 8, 4, 2),  # 4 ranks on 2 nodes
        (16, 8, 16, 8),
        (16, 4, 2, 1),  # 2 ranks on 4 nodes, so a rank must span nodes
        (14, 7, 7, 1),  # 7 ranks cannot be split evenly between 2 nodes
        (8, 8, 4, 4),
    ],
)
def test_all_processes_guess_alike_how_many_data_parallel_ranks_a_node_has(
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    per_node: int,
    dp_world_size: int,
    expected: int,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(per_node))
    indexes = set()
    for process in range(processes):
        monkeypatch.setenv("RANK", str(process))
        world = find_world(process % dp_world_size, dp_world_size)
        assert world.ranks_per_node == expected
        indexes.add((world.rank, world.index))
    assert sorted(index for _, index in indexes) == list(range(dp_world_size)), (
        "each rank must have one index, which is the same on all processes"
    )


@contextlib.contextmanager
def mesh_of_eight(process: int, *names: str) -> Iterator[Any]:
    """Yield a 2 x 2 x 2 mesh as seen by one of its processes, without starting the other seven."""
    dist.init_process_group("fake", store=FakeStore(), rank=process, world_size=8)
    try:
        yield init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def test_the_place_in_a_mesh_is_that_of_its_data_parallel_dimensions() -> None:
    places = []
    for process in range(8):
        with mesh_of_eight(process, "dp_replicate", "tp", "dp_shard") as mesh:
            inner = mesh["dp_shard"]
            both = mesh["dp_replicate", "dp_shard"]
            places.append(
                [
                    rank_in_mesh(each)
                    for each in (inner, mesh["dp_replicate"], both, both._flatten("dp"), mesh)
                ]
            )
    assert [[rank for rank, _ in column] for column in zip(*places, strict=True)] == [
        [0, 1, 0, 1, 0, 1, 0, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 1, 0, 1, 2, 3, 2, 3],
        [0, 1, 0, 1, 2, 3, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert [[size for _, size in place] for place in places] == [[2, 2, 4, 4, 8]] * 8


def test_a_process_outside_of_the_mesh_hears_so() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    try:
        with pytest.raises(
            ValueError,
            match=r"this process is not in the device_mesh .*Include all processes in the mesh",
        ):
            rank_in_mesh(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))
    finally:
        dist.destroy_process_group()


def test_a_broken_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE is 'two'"):
        find_world()


@pytest.mark.parametrize(
    ("num_workers", "num_ranks", "own_cores", "node_cores", "most"),
    [
        (4, 1, 2, 2, 2),
        (4, 8, 16, 16, 2),
        (4, 2, 3, 64, 3),
        (2, 8, 1, 4, 1),
        (4, 1, 4, 4, None),
        (4, 8, 4, 32, None),
        (1, 4, 2, 2, None),
    ],
)
def test_more_workers_than_cores_hear_how_many_would_do(
    num_workers: int, num_ranks: int, own_cores: int, node_cores: int, most: int | None
) -> None:
    warning = explain_few_cores(num_workers, num_ranks, own_cores, node_cores)
    assert (warning is None) == (most is None)
    assert most is None or str(warning).endswith(f"Use num_workers={most}")


def test_more_workers_than_cores_are_a_warning_once(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    num_workers = len(os.sched_getaffinity(0)) + 1
    with make_loader(folder, num_workers=num_workers, num_lanes=num_workers) as loader:
        loader.worker_plan()
        loader.worker_plan()
    found = [each for each in caplog.records if f"num_workers is {num_workers}," in each.message]
    assert [each.levelname for each in found] == ["WARNING"]


@pytest.mark.parametrize(
    ("num_ranks", "own_cores", "node_cores", "expected"),
    [(1, 64, 64, 4), (1, 2, 2, 2), (8, 16, 16, 2), (8, 64, 64, 4), (4, 2, 2, 1), (1, 3, 64, 3)],
)
def test_default_workers_fit_the_cores(
    num_ranks: int, own_cores: int, node_cores: int, expected: int
) -> None:
    found = default_num_workers(num_ranks, own_cores, node_cores, is_fast=False)
    assert found == expected
    assert default_num_workers(num_ranks, own_cores, node_cores, is_fast=True) == 1
    if node_cores >= num_ranks:
        assert explain_few_cores(found, num_ranks, own_cores, node_cores) is None


SLOW = ({"tokenizer_backend": "hf"}, {"transform": dict.get, "transform_id": "get"})


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
@pytest.mark.parametrize("options", [{}, *SLOW])
def test_a_default_number_of_workers_is_never_a_warning(
    folder: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr("cloudload.loading.preparation.count_cores", lambda: (cores, cores))
    with make_loader(folder, num_workers=None, num_lanes=8, **options) as loader:
        plan, described = loader.worker_plan(), loader.describe()
        is_fast = not options and loader.stats().tokenizer_backend == "fastokens"
    expected = 1 if is_fast else min(4, cores)
    assert plan.share.num_workers == described["num_workers"] == expected
    assert re.search(rf"num_workers +{expected} per rank .*default", str(described))
    assert not [each for each in caplog.records if "workers" in each.getMessage()]


@pytest.mark.parametrize("size", ["0", "00"])
def test_a_world_without_ranks_is_refused(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ValueError, match=r"world size is 0. Set dp_world_size, or .* at least 1"):
        find_world()
    with pytest.raises(ValueError, match=r"world size is 0\. Set"):
        find_world(0, 0)
