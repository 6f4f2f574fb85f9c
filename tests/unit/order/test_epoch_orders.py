"""The canonical order is StreamingDataset's own, less the samples that it repeats."""

from __future__ import annotations

import collections
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.cache.folder import sweep
from cloudload.errors import CacheError
from cloudload.order import epoch_orders
from cloudload.order.epoch_orders import EpochOrders
from cloudload.order.sampling import reads_per_shard
from cloudload.order.spec import OrderConfig, Sampling
from cloudload.order.streaming_shuffles import shuffle_nodes
from cloudload.system.file_locks import locked
from tests.support.corpora import write_mds
from tests.support.reference_order import canonical_order, interleave

SHARDS = [7, 30, 1, 12, 25, 9, 18]


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", None])
@pytest.mark.parametrize("num_nodes", [1, 4, 8])
def test_a_real_streaming_dataset_yields_our_order(
    tmp_path: Path, algorithm: str | None, num_nodes: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import streaming

    streaming.base.util.clean_stale_shared_memory()
    folder = write_mds(
        tmp_path / "corpus", [str(number) for number in range(sum(SHARDS))], shard_samples=SHARDS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = streaming.StreamingDataset(
            local=folder,
            shuffle=algorithm is not None,
            shuffle_algo=algorithm or "py1e",
            shuffle_seed=23,
            shuffle_block_size=20,
            num_canonical_nodes=num_nodes,
            batch_size=1,
        )
        epochs = [[int(sample["text"]) for sample in dataset] for _ in range(2)]
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, num_nodes, 23)
    for epoch, theirs in enumerate(epochs):
        ours = canonical_order(np.array(SHARDS), config, epoch).tolist()
        # what Streaming repeats, it has given before
        without_repeats = list(dict.fromkeys(theirs))
        assert ours == without_repeats
        assert sorted(ours) == list(range(sum(SHARDS)))
    assert algorithm is None or epochs[0] != epochs[1]


@settings(max_examples=300)
@given(num_samples=st.integers(1, 200), num_nodes=st.integers(1, 20))
def test_interleaving_is_what_streamings_partition_gives_to_one_worker(
    num_samples: int, num_nodes: int
) -> None:
    from streaming.base.partition import get_partitions

    num_nodes = min(num_nodes, num_samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_partitions("relaxed", num_samples, num_nodes, 1, 1, 1, 1).ravel().tolist()
    assert interleave(np.arange(num_samples), num_nodes).tolist() == list(dict.fromkeys(theirs))


def test_a_position_belongs_to_its_canonical_node() -> None:
    order = interleave(np.arange(11), 4)
    nodes = [range(0, 2), range(2, 5), range(5, 8), range(8, 11)]
    assert order.tolist() == [0, 2, 5, 8, 1, 3, 6, 9, 4, 7, 10]
    assert all(order[position] in nodes[position % 4] for position in range(8))


def test_an_order_on_disk_is_the_one_in_memory_and_is_built_once(tmp_path: Path) -> None:
    config = OrderConfig(True, "py1e", 20, 4, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config)
    for epoch in (0, 1, 5):
        assert orders(epoch).tolist() == canonical_order(np.array(SHARDS), config, epoch).tolist()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert EpochOrders(tmp_path, np.array(SHARDS), config)(5).tolist() == orders(5).tolist()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == written
    other = EpochOrders(tmp_path, np.array(SHARDS), OrderConfig(True, "py1e", 20, 4, 2))
    assert other(5).tolist() != orders(5).tolist()


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
        assert order.tolist() == canonical_order(shards, config, 0, sampling).tolist()
    assert len(list(tmp_path.rglob("*.npy"))) == 4


@settings(max_examples=300, deadline=None)
@given(
    algorithm=st.sampled_from(["py1e", "py1br", "py1s", "py2s", "naive"]),
    shards=st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any),
    num_nodes=st.integers(1, 20),
    block_size=st.integers(2, 90),
    epoch=st.integers(0, 5),
)
def test_our_shuffles_are_streamings(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    check_shuffle(algorithm, shards, min(num_nodes, sum(shards)), block_size, epoch)


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive"])
def test_our_shuffles_are_streamings_where_they_go_by_parts(algorithm: str) -> None:
    for block_size in (2_000, 60_000):
        check_shuffle(algorithm, [1_000, 3_000, 500] * 100, 3, block_size, 1)


def check_shuffle(
    algorithm: str, shards: list[int], num_nodes: int, block_size: int, epoch: int
) -> None:
    from streaming.base.shuffle import get_shuffle

    sizes = np.array(shards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_shuffle(algorithm, sizes, num_nodes, 23, epoch, block_size)
    nodes = list(
        shuffle_nodes(
            algorithm, sizes, num_nodes=num_nodes, seed=23, epoch=epoch, block_size=block_size
        )
    )
    assert np.concatenate(nodes).tolist() == theirs.tolist()
    bounds = np.arange(num_nodes + 1) * len(theirs) // num_nodes
    assert list(map(len, nodes)) == np.diff(bounds).tolist()


def test_of_samples_that_land_on_one_place_the_earlier_is_first() -> None:
    from cloudload.order import streaming_shuffles as shuffles

    places = np.array([3.0, 1.0, 2.0, 1.0, 3.0, 1.0, 2.0 + 1e-12, 2.0])
    assert shuffles._order_of(places).tolist() == np.argsort(places, kind="stable").tolist()
    crowded = np.random.default_rng(0).uniform(0, 1e-6, 500).round(8) + np.repeat([0.0, 1e9], 250)
    assert shuffles._order_of(crowded).tolist() == np.argsort(crowded, kind="stable").tolist()


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", "seekable", None])
@pytest.mark.parametrize("sampling", [None, Sampling((3, 4), (77, 60))])
def test_the_order_of_a_run_is_the_one_in_memory(
    tmp_path: Path, algorithm: str | None, sampling: Sampling | None
) -> None:
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, 4, 1)
    orders = EpochOrders(tmp_path, np.array(SHARDS), config, sampling)
    for epoch in (0, 1):
        assert (
            np.asarray(orders(epoch)).tolist()
            == canonical_order(np.array(SHARDS), config, epoch, sampling).tolist()
        )


def test_old_orders_go(tmp_path: Path) -> None:
    orders = EpochOrders(tmp_path, np.array([40_000]), OrderConfig(True, "py1s", 20, 1, 1))
    for epoch in range(5):
        orders(epoch)
    assert orders_in(tmp_path) == ["epoch-2.npy", "epoch-3.npy", "epoch-4.npy"]


@pytest.mark.parametrize("damage", ["changed", "cut", "emptied"])
def test_an_order_that_was_written_to_is_built_again(tmp_path: Path, damage: str) -> None:
    config = OrderConfig(True, "py1s", 20, 1, 1)
    expected = EpochOrders(tmp_path, np.array([40_000]), config)(0).tolist()
    [path] = tmp_path.rglob("epoch-0.npy")
    whole = path.read_bytes()
    path.write_bytes(
        {"changed": whole[:-4] + whole[-8:-4], "cut": whole[:-4], "emptied": b""}[damage]
    )
    assert EpochOrders(tmp_path, np.array([40_000]), config)(0).tolist() == expected


def test_a_full_disk_is_an_error_and_leaves_no_order(small_disk: Path) -> None:
    orders = EpochOrders(small_disk, np.array([50_000]), OrderConfig(True, "py1e", 20, 4, 1))
    with pytest.raises(
        CacheError, match=r"cannot write the order of epoch 0 \(50,000 documents\).*No space left"
    ):
        orders(0)
    assert orders_in(small_disk) == []


# ---------------------------------------------------------------- in the background

AHEAD = OrderConfig(True, "py1br", 20, 4, 1)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of any size are built ahead."""
    monkeypatch.setattr("cloudload.order.epoch_orders._BACKGROUND_FROM_POSITIONS", 0)


def wait_until(condition: Any) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def children() -> list[int]:
    """The processes that this one has started, dead ones that nobody has waited for included."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def orders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("epoch-*"))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("sampling", [None, Sampling((3, 4), (77, 60))])
def test_an_order_built_in_the_background_is_the_same_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling | None
) -> None:
    orders, before = EpochOrders(tmp_path, np.array(SHARDS), AHEAD, sampling), set(children())
    started = time.monotonic()
    assert orders.build_in_background(3)
    assert time.monotonic() - started < 1
    assert not orders.build_in_background(3)
    assert wait_until(lambda: orders_in(tmp_path) == ["epoch-3.npy"])
    assert wait_until(lambda: set(children()) <= before)
    assert not orders.build_in_background(3)
    monkeypatch.setattr(EpochOrders, "build", None)
    assert orders(3).tolist() == canonical_order(np.array(SHARDS), AHEAD, 3, sampling).tolist()


@pytest.mark.usefixtures("any_size")
def test_of_many_who_ask_one_builds(tmp_path: Path) -> None:
    asked = [EpochOrders(tmp_path, np.array([5_000] * 400), AHEAD) for _ in range(6)]
    assert sum(orders.build_in_background(1) for orders in asked) == 1
    assert asked[0].build_in_background(2)
    assert wait_until(lambda: orders_in(tmp_path) == ["epoch-1.npy", "epoch-2.npy"])


@pytest.mark.usefixtures("any_size")
def test_who_needs_an_order_that_is_being_built_waits_for_it(tmp_path: Path) -> None:
    orders = EpochOrders(tmp_path, np.array([5_000] * 400), AHEAD)
    assert orders.build_in_background(1)
    assert orders(1).tolist() == canonical_order(np.array([5_000] * 400), AHEAD, 1).tolist()


def test_a_daemonic_worker_may_build_ahead(tmp_path: Path) -> None:
    for method in ("fork", "spawn"):
        worker = multiprocessing.get_context(method).Process(
            target=build_ahead, args=(tmp_path / method,), daemon=True
        )
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
        assert orders_in(tmp_path / method) == ["epoch-1.npy"]


def build_ahead(folder: Path) -> None:
    epoch_orders._BACKGROUND_FROM_POSITIONS = 0
    assert EpochOrders(folder, np.array(SHARDS), AHEAD).build_in_background(1)
    assert wait_until(lambda: orders_in(folder) == ["epoch-1.npy"])


@pytest.mark.parametrize("starter", ["the training process", "a worker"])
def test_a_builder_ends_with_the_training_process_and_leaves_nothing(
    tmp_path: Path, starter: str
) -> None:
    code = f"""
import multiprocessing, os, signal, sys, time
from pathlib import Path
import numpy as np
from cloudload.order import epoch_orders
from cloudload.order.epoch_orders import EpochOrders
from cloudload.order.spec import OrderConfig
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
    assert wait_until(lambda: orders_in(tmp_path) == [])


@pytest.mark.usefixtures("any_size")
def test_what_a_killed_builder_leaves_is_swept_and_the_order_is_built_when_needed(
    tmp_path: Path,
) -> None:
    sizes, before = np.array([5_000] * 1_000), set(children())
    orders = EpochOrders(tmp_path / "orders", sizes, AHEAD)
    assert orders.build_in_background(1)
    [builder] = set(children()) - before
    assert wait_until(lambda: any(name.endswith(".part") for name in orders_in(tmp_path)))
    os.kill(builder, signal.SIGKILL)
    assert wait_until(lambda: set(children()) <= before)
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
    assert orders(1).tolist() == canonical_order(np.array(SHARDS), AHEAD, 1).tolist()


# ---------------------------------------------------------------- repeat and choose

STREAMS = [[7, 30, 1, 12], [1], [25, 9, 18], [4, 4, 3]]
"""Samples of each shard of each stream: 50, 1, 52 and 11."""

Weight = dict[str, Any]


def sampling_of(streams: list[list[int]], weights: list[Weight]) -> Sampling | None:
    return Sampling.of(
        [sum(shards) for shards in streams],
        [len(shards) for shards in streams],
        [weight.get("repeat") for weight in weights],
        [weight.get("choose") for weight in weights],
    )


def without_padding(ids: list[int], num_positions: int, num_nodes: int) -> list[int]:
    """What one worker is given, less the places at which Streaming's partition repeats an earlier
    place."""
    from streaming.base.partition import get_partitions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = get_partitions("relaxed", num_positions, num_nodes, 1, 1, 1, 1).ravel()
    assert len(places) == len(ids)
    return [ids[first] for first in sorted(np.unique(places, return_index=True)[1])]


@pytest.mark.parametrize(
    "weights",
    [
        [{"repeat": 2}, {}, {}, {}],
        [{"repeat": 0.5}, {}, {"repeat": 1.37}, {"repeat": 1.37}],
        [{"choose": 20}, {"choose": 5}, {"choose": 120}, {"choose": 1}],
        [{"repeat": 0.29}, {"repeat": 3.99}, {}, {"choose": 22}],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("algorithm", "num_nodes"),
    [("py1e", 8), ("py1br", 4), ("py1s", 1), (None, 4)],
)
def test_a_real_streaming_dataset_repeats_and_chooses_as_we_do(
    tmp_path: Path, weights: list[Weight], algorithm: str | None, num_nodes: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import streaming

        streaming.base.util.clean_stale_shared_memory()
        starts = np.cumsum([0, *map(sum, STREAMS)])
        folders = [
            write_mds(
                tmp_path / str(number),
                map(str, range(starts[number], starts[number + 1])),
                shard_samples=shards,
            )
            for number, shards in enumerate(STREAMS)
        ]
        dataset = streaming.StreamingDataset(
            streams=[
                streaming.Stream(local=folder, **weight)
                for folder, weight in zip(folders, weights, strict=True)
            ],
            shuffle=algorithm is not None,
            shuffle_algo=algorithm or "py1e",
            shuffle_seed=23,
            shuffle_block_size=20,
            num_canonical_nodes=num_nodes,
            batch_size=1,
        )
        epochs = [[int(sample["text"]) for sample in dataset] for _ in range(3)]
    sampling = sampling_of(STREAMS, weights)
    assert sampling is not None
    assert sampling.num_positions == dataset.epoch_size
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, num_nodes, 23)
    for epoch, theirs in enumerate(epochs):
        ours = canonical_order(np.concatenate(STREAMS), config, epoch, sampling).tolist()
        assert ours == without_padding(theirs, sampling.num_positions, num_nodes)
    if any(choose % sum(shards) for choose, shards in zip(sampling.choose, STREAMS, strict=True)):
        reads = [collections.Counter(epoch) for epoch in epochs]
        assert reads[0] != reads[1] != reads[2]


@st.composite
def weighted_streams(draw: st.DrawFn) -> tuple[list[list[int]], list[Weight]]:
    streams = draw(
        st.lists(
            st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any), min_size=1, max_size=4
        )
    )
    weights = []
    for shards in streams:
        chosen = {"choose": st.integers(1, 3 * sum(shards) + 1)}
        repeated = {"repeat": st.floats(1, 3.5) | st.integers(1, 3) | st.just(1.5 / sum(shards))}
        weights.append(
            draw(st.fixed_dictionaries(chosen) | st.fixed_dictionaries(repeated) | st.just({}))
        )
    return streams, weights


@settings(max_examples=200)
@given(
    weighted=weighted_streams(),
    algorithm=st.sampled_from(["py1e", "py1br", "py1s", "py2s", "naive", None]),
    num_nodes=st.integers(1, 6),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_any_repeat_and_choose_is_what_streaming_makes_of_it(
    weighted: tuple[list[list[int]], list[Weight]],
    algorithm: str | None,
    num_nodes: int,
    seed: int,
    epoch: int,
) -> None:
    from streaming import Stream, StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    streams, weights = weighted
    samples, shards = np.array([sum(shards) for shards in streams]), np.concatenate(streams)
    theirs = [SimpleNamespace(**weight) for weight in weights]
    epoch_size = Stream.apply_weights(theirs, samples, None, seed)
    sampling = sampling_of(streams, weights)
    if sampling is None:
        assert [stream.choose for stream in theirs] == samples.tolist()
        sampling = Sampling(tuple(map(len, streams)), tuple(samples.tolist()))
    assert sampling.choose == tuple(stream.choose for stream in theirs)
    assert sampling.num_positions == epoch_size

    num_nodes = min(num_nodes, epoch_size)
    num_shards = np.array(list(map(len, streams)))
    dataset = SimpleNamespace(
        streams=theirs,
        num_streams=len(streams),
        shards_per_stream=num_shards,
        shard_offset_per_stream=np.cumsum(num_shards) - num_shards,
        samples_per_shard=shards,
        sample_offset_per_shard=np.cumsum(shards) - shards,
        sampling_method="balanced",
        sampling_granularity=1,
        epoch_seed_change=algorithm is not None,
        epoch_size=epoch_size,
        shuffle=algorithm is not None,
        shuffle_algo=algorithm or "py1e",
        shuffle_seed=seed,
        shuffle_block_size=8,
        partition_algo="relaxed",
        num_canonical_nodes=num_nodes,
        initial_physical_nodes=None,
        batch_size=1,
    )
    dataset.resample_streams = lambda epoch: StreamingDataset.resample_streams(dataset, epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = generate_work("random", dataset, World(1, 1, 1, 0), epoch, 0).ravel().tolist()
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 8, num_nodes, seed)
    ours = canonical_order(shards, config, epoch, sampling).tolist()
    assert ours == without_padding(work, epoch_size, num_nodes)

    # each stream gives what it is to give, each of its samples once more or less than any other
    reads = np.bincount(ours, minlength=sum(samples))
    for stream, start, choose in zip(
        samples, np.cumsum(samples) - samples, sampling.choose, strict=True
    ):
        of_stream = reads[start : start + stream]
        assert of_stream.sum() == choose
        assert sorted(of_stream) == sorted(
            [choose // stream] * (stream - choose % stream)
            + [choose // stream + 1] * (choose % stream)
        )


@given(
    shards=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    choose=st.integers(1, 400),
    seed=st.integers(0, 99),
)
def test_a_draw_is_divided_among_the_shards_as_streaming_does(
    shards: list[int], choose: int, seed: int
) -> None:
    from streaming.base.sampling import get_sampling

    theirs = get_sampling(np.array(shards), choose, 1, seed, 0, False)
    assert reads_per_shard(np.array(shards), choose, seed).tolist() == theirs.tolist()


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", None])
def test_a_sampling_of_each_sample_once_is_the_plain_order(algorithm: str | None) -> None:
    config = OrderConfig(algorithm is not None, algorithm or "py1e", 20, 4, 1)
    assert sampling_of(STREAMS, [{}, {"repeat": 1}, {"choose": 52}, {"repeat": 1.05}]) is None
    plain = canonical_order(np.array(SHARDS), config, 3)
    assert (
        canonical_order(np.array(SHARDS), config, 3, Sampling((3, 4), (38, 64))).tolist()
        == plain.tolist()
    )


def test_without_shuffle_an_upsampled_stream_reads_on_from_its_start() -> None:
    config = OrderConfig(False, "py1e", 20, 1, 1)
    order = canonical_order(np.array([2, 2, 3]), config, 0, Sampling((2, 1), (8, 6)))
    assert order.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 6, 4, 5, 6]


def test_a_repeat_is_cut_to_whole_samples_as_floats_have_it() -> None:
    sampling = Sampling.of([100, 100, 10], [1, 1, 1], [1.15, 0.29, None], [None, None, 7])
    assert sampling == Sampling((1, 1, 1), (114, 28, 7))
    assert sampling.num_positions == 149


@pytest.mark.parametrize(
    ("samples", "weight", "message"),
    [
        (10, {"repeat": 2, "choose": 5}, "streams[1] has repeat 2 and choose 5. Give one of them"),
        (10, {"choose": 0}, "streams[1] has choose 0; it must be a whole number of at least 1"),
        (10, {"choose": 2.5}, "streams[1] has choose 2.5; it must be a whole number of at least 1"),
        (
            10,
            {"choose": True},
            "streams[1] has choose True; it must be a whole number of at least 1",
        ),
        (10, {"repeat": "two"}, "streams[1] has repeat 'two'; it must be a number above 0"),
        (10, {"repeat": 0}, "streams[1] has repeat 0; it must be a number above 0"),
        (10, {"repeat": -1.5}, "streams[1] has repeat -1.5; it must be a number above 0"),
        (10, {"repeat": float("nan")}, "streams[1] has repeat nan; it must be a number above 0"),
        (10, {"repeat": float("inf")}, "streams[1] has repeat inf; it must be a number above 0"),
        (
            10,
            {"repeat": 0.09},
            "streams[1] has repeat 0.09, which selects none of its 10 samples. "
            "Increase it, or leave the stream out",
        ),
        (
            0,
            {"choose": 3},
            "streams[1] has choose 3, which selects none of its 0 samples. "
            "Increase it, or leave the stream out",
        ),
    ],
)
def test_a_weight_that_gives_nothing_is_refused(samples: int, weight: Weight, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Sampling.of(
            [4, samples], [1, 1], [None, weight.get("repeat")], [None, weight.get("choose")]
        )
