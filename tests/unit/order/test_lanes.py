"""Which lane reads what, which rank serves which lane, and what a fresh run takes for granted."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudload.arrays import divisors
from cloudload.config import RowsConfig, Stream, parse_bytes
from cloudload.delivery.exchange import group_processes
from cloudload.delivery.world import World, check_world, find_world, place_in_mesh
from cloudload.errors import RanksDisagreeError
from cloudload.order.lanes import Lanes, rank_rows, worker_of_rows
from cloudload.order.layout import resolve_layout


@given(
    num_nodes=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    lanes_of_node=st.integers(1, 5),
    num_samples=st.integers(1, 100),
    epochs=st.integers(1, 3),
)
def test_lanes_share_out_every_document_of_every_epoch_once(
    num_nodes: int, lanes_of_node: int, num_samples: int, epochs: int
) -> None:
    num_lanes = num_nodes * lanes_of_node
    lanes = Lanes(num_lanes, num_samples, epochs, num_nodes)
    places = [
        lanes.place(lane, ordinal)
        for lane in range(num_lanes)
        for ordinal in range(lanes.end(lane) or 0)
    ]
    documents = sorted(place for place in places if place[1] < num_samples)
    assert documents == [
        (epoch, position) for epoch in range(epochs) for position in range(num_samples)
    ]


@given(num_lanes=st.integers(1, 40), num_samples=st.integers(1, 100))
def test_with_a_document_for_each_a_lane_keeps_to_its_positions(
    num_lanes: int, num_samples: int
) -> None:
    assume(num_samples >= num_lanes)
    lanes = Lanes(num_lanes, num_samples, None)
    for lane in range(num_lanes):
        assert {lanes.place(lane, ordinal)[1] % num_lanes for ordinal in range(30)} == {lane}


@given(num_lanes=st.integers(1, 40), num_samples=st.integers(1, 100))
def test_every_lane_has_documents_for_ever(num_lanes: int, num_samples: int) -> None:
    lanes = Lanes(num_lanes, num_samples, None)
    for lane in range(num_lanes):
        assert any(lanes.place(lane, ordinal)[1] < num_samples for ordinal in range(2))


@given(
    world=st.sampled_from([(1, 1), (4, 4), (8, 4), (12, 4), (6, 3), (6, 4)]),
    batch_size=st.integers(1, 9),
    start=st.integers(0, 500),
    num_workers=st.integers(1, 5),
)
def test_a_global_batch_falls_to_ranks_evenly_and_to_workers_by_lane(
    world: tuple[int, int], batch_size: int, start: int, num_workers: int
) -> None:
    size, ranks_per_node = world
    stop = start + batch_size * size
    seen: list[int] = []
    for rank in range(size):
        index = World(rank, size, ranks_per_node).index
        rows = rank_rows(start, stop, index, size)
        assert len(rows) == batch_size
        seen += rows
        own = list(World(rank, size, ranks_per_node).lanes(24))[:]
        workers = worker_of_rows(rows, 24, size, num_workers).tolist()
        assert all(
            row % 24 in own[worker::num_workers] for row, worker in zip(rows, workers, strict=True)
        )
    assert sorted(seen) == list(range(start, stop))


def test_a_node_touches_only_its_own_canonical_nodes() -> None:
    num_lanes, num_nodes, ranks_per_node = 48, 16, 3
    for num_hosts in (2, 4, 8):
        for rank in range(num_hosts * ranks_per_node):
            world = World(rank, num_hosts * ranks_per_node, ranks_per_node)
            lanes = Lanes(num_lanes, 10_000, None, num_nodes)
            own = {
                lanes.place(lane, ordinal)[1] % num_nodes
                for lane in world.lanes(num_lanes)
                for ordinal in range(9)
            }
            of_host = np.flatnonzero(
                lanes.hosts_of_nodes(num_hosts) == rank // ranks_per_node
            ).tolist()
            assert own <= set(of_host)
            assert of_host == list(range(of_host[0], of_host[0] + num_nodes // num_hosts)), (
                "one stretch of canonical nodes"
            )


@pytest.mark.parametrize(
    ("num_samples", "num_shards", "lanes", "nodes"),
    [
        (1, 1, 12, 1),
        (500, 2, 12, 1),
        (1_000, 10, 60, 2),
        (20_000, 50, 240, 8),
        (400_000, 1_000, 960, 64),
        (10_000_000, 1_000, 3840, 64),
    ],
)
def test_defaults_follow_from_the_data_alone(
    num_samples: int, num_shards: int, lanes: int, nodes: int
) -> None:
    layout = resolve_layout(RowsConfig((Stream("x"),), 8), [(num_samples, num_shards)])
    assert (layout.num_lanes, layout.canonical_nodes) == (lanes, (nodes,))


@given(st.integers(1, 10**7), st.integers(1, 10**5), st.none() | st.integers(1, 50))
def test_whatever_the_data_the_defaults_fit_together(
    num_samples: int, num_shards: int, nodes: int | None
) -> None:
    assume(num_shards <= num_samples and (nodes is None or nodes <= num_samples))
    layout = resolve_layout(
        RowsConfig((Stream("x"),), 8, num_canonical_nodes=nodes), [(num_samples, num_shards)]
    )
    [found] = layout.canonical_nodes
    assert layout.num_lanes % found == 0
    assert found <= num_samples


def test_a_world_that_does_not_divide_the_lanes_hears_which_would() -> None:
    check_world(12, 6)
    with pytest.raises(
        ValueError,
        match=r"cannot share 12 lanes over 5 ranks: 2 would be left over\. "
        r"Use a world size from \[1, 2, 3",
    ):
        check_world(12, 5)


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
        (16, 8, 4, 2),  # two ranks of four processes a node
        (16, 8, 16, 8),
        (16, 4, 2, 1),  # a rank spans nodes
        (14, 7, 7, 1),  # a rank has processes of two nodes
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
        "one index for each rank, on all processes"
    )


@contextlib.contextmanager
def mesh_of_eight(process: int, *names: str) -> Iterator[Any]:
    """A mesh of 2 x 2 x 2 processes, as one of them has it."""
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
                    place_in_mesh(each)
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
            place_in_mesh(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        ([0, 1, 2], [[0, 1, 2]]),
        ([0, 0, 1, 1], [[0, 2], [1, 3]]),
        ([0, 1, 0, 1], [[0, 1], [2, 3]]),
        ([1, 0, 0, 1], [[1, 0], [2, 3]]),
        ([0, 0], [[0], [1]]),
    ],
)
def test_a_group_that_exchanges_has_a_process_of_every_rank(
    ranks: list[int], groups: list[list[int]]
) -> None:
    assert group_processes(ranks, max(ranks) + 1) == groups


@pytest.mark.parametrize(
    ("ranks", "numbers"),
    [([0, 0, 0, 1], [3, 1, 0]), ([0, 2], [1, 0, 1]), ([0, 1, 1, 2], [1, 2, 1])],
)
def test_ranks_with_unequal_numbers_of_processes_are_refused(
    ranks: list[int], numbers: list[int]
) -> None:
    with pytest.raises(
        RanksDisagreeError,
        match=re.escape(f"the data-parallel ranks 0 to 2 have {numbers} processes"),
    ):
        group_processes(ranks, 3)


def test_a_broken_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE is 'two'"):
        find_world()


@given(st.integers(1, 5_000))
def test_divisors_divide(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(5, 5), ("5", 5), ("2kb", 2048), ("1.5GB", 3 << 29), ("64MiB", 64 << 20), ("1t", 1 << 40)],
)
def test_sizes_are_read_as_people_write_them(text: int | str, expected: int) -> None:
    assert parse_bytes(text) == expected
    assert math.isfinite(parse_bytes(text))


@pytest.mark.parametrize("text", ["", "gb", "-5", "5 apples", "1.2.3mb", 0, -1, True, "0.1"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)
