"""Delivery statistics match the requests that the store received."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Retry, Stream
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.stats import DeliveryStats, Traffic
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import list_settings, make_loader

DOCUMENTS = random_documents(12, 300)
NO_STALL = 0.0


def write(url: str, *, compression: str | None = "zstd") -> list[int]:
    """Write the documents, and return the stored size of each shard in bytes."""
    write_mds(url, DOCUMENTS, shard_bytes=4_000, compression=compression)
    return [stored.bytes for stored in Location(url).list_objects() if "shard." in stored.url]


def loader_of(data: Any, cache: Path, **settings: Any) -> CloudLoader:
    defaults = {"seq_len": 64, "num_lanes": 8, "batch_size": 8, "num_workers": 1}
    return make_loader(data, local=cache, **{**defaults, **settings})


def wait_for_each(sample: dict[str, Any]) -> str:
    """A transform that takes 10 ms."""
    time.sleep(0.01)
    return str(sample["text"])


def read_epochs(loader: CloudLoader, number: int = 1) -> DeliveryStats:
    """Read until each stream has completed this many epochs, and return the delivery statistics."""
    for _ in loader:
        if all(stream.epoch > number for stream in loader.stats().streams.values()):
            break
    return loader.stats().delivery


def counts_of(delivery: DeliveryStats) -> tuple[int, int, int]:
    return delivery.cache_hits, delivery.cache_misses, delivery.bytes_downloaded


@pytest.mark.parametrize("num_workers", [0, 1])
def test_shards_are_missed_once_and_found_from_then_on(
    s3_url: str, tmp_path: Path, num_workers: int
) -> None:
    sizes = write(s3_url)
    with loader_of(s3_url, tmp_path, num_workers=num_workers) as first:
        assert counts_of(read_epochs(first)) == (0, len(sizes), sum(sizes))
    with loader_of(s3_url, tmp_path, num_workers=num_workers) as second:
        assert counts_of(read_epochs(second)) == (len(sizes), 0, 0)


def test_what_several_workers_fetch_is_added_up(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    sizes = write(s3_url)
    s3_proxy.set_faults([])
    with loader_of(s3_url, tmp_path, num_workers=2) as loader:
        # after 3 epochs, both workers have reported all shards that they fetched
        hits, misses, num_bytes = counts_of(read_epochs(loader, 3))
    # when one worker fetches a shard, the other waits for it (a miss) or finds it later (a hit)
    assert len(sizes) <= misses <= hits + misses <= 2 * len(sizes)
    assert (
        num_bytes
        == sum(sizes)
        == sum(request.body_bytes for request in s3_proxy.requests("GET .*shard"))
    )


def test_a_shard_that_another_process_fetches_is_a_miss_without_bytes(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    sizes, corpus = write(s3_url), open_corpus([Location(s3_url, Retry())])
    s3_proxy.fail("GET .*shard", "delay", seconds=1.0)
    mine, others = (ShardCache(corpus, tmp_path, verify="once") for _ in range(2))
    thread = threading.Thread(target=others.shard, args=(0,))
    thread.start()
    while not list(tmp_path.rglob("*.part")):
        time.sleep(0.01)
    mine.prefetch({0: None})
    mine.shard(0)
    thread.join()
    fetched = others.traffic.take()
    assert fetched == Traffic(0, 1, sizes[0], fetched.download_ns, fetched.unpack_ns)
    assert fetched.download_ns > 0.9e9 > fetched.unpack_ns > 0
    assert mine.traffic.take() == Traffic(0, 1, 0)
    assert mine.traffic.take() == Traffic()


def test_bytes_that_came_damaged_count_too(s3_url: str, tmp_path: Path) -> None:
    sizes, corpus = write(s3_url), open_corpus([Location(s3_url, Retry())])
    url = f"{s3_url}/{corpus.datasets[0].shards[0].stored.name}"
    Location(url).write(Location(url).read()[::-1])
    cache = ShardCache(corpus, tmp_path, verify="once")
    with pytest.raises(DatasetError, match="second invalid download"):
        cache.shard(0)
    assert cache.traffic.take()[:3] == (0, 0, 2 * sizes[0])


def test_what_was_evicted_is_missed_again(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, corpus = write(s3_url), open_corpus([Location(s3_url, Retry())])
    # unmap evicted shards immediately
    monkeypatch.setattr("cloudload.data.cache.shard_cache.TOUCH_EVERY_S", 0.0)
    limit = 3 * max(shard.raw.bytes for shard in corpus.datasets[0].shards)
    cache = ShardCache(corpus, tmp_path, limit_bytes=limit, verify="once")
    s3_proxy.set_faults([])
    for _ in range(2):
        for shard in range(len(sizes)):
            cache.shard(shard)
    assert len(s3_proxy.requests("GET .*shard")) == 2 * len(sizes)
    assert cache.traffic.take()[:3] == (0, 2 * len(sizes), 2 * sum(sizes))


def test_a_shard_that_was_let_go_of_and_not_evicted_is_a_hit(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, corpus = write(s3_url), open_corpus([Location(s3_url, Retry())])
    monkeypatch.setattr("cloudload.data.cache.shard_cache.MOST_OPEN_SHARDS", 1)
    cache = ShardCache(corpus, tmp_path, verify="once")
    for shard in (0, 1, 0, 0):
        cache.shard(shard)
    assert cache.traffic.take()[:3] == (1, 2, sizes[0] + sizes[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards_that_are_mapped_where_they_lie_are_neither_hits_nor_misses(
    local_url: str, tmp_path: Path, num_workers: int
) -> None:
    write(local_url, compression=None)
    with loader_of(local_url, tmp_path / "cache", num_workers=num_workers) as loader:
        assert counts_of(read_epochs(loader)) == (0, 0, 0)


def test_a_slow_store_shows_as_stall_and_the_training_loop_does_not(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    write(s3_url)
    s3_proxy.fail("GET .*shard", "delay", seconds=0.5)
    with loader_of(s3_url, tmp_path) as loader:
        assert loader.stats().delivery.stall_s == NO_STALL
        batches, began = iter(loader), time.perf_counter()
        for _ in range(3):
            next(batches)
            time.sleep(0.4)
        assert 0.5 <= loader.stats().delivery.stall_s <= time.perf_counter() - began - 3 * 0.4


def test_statistics_survive_a_restart_of_workers_and_are_not_in_the_state(
    s3_url: str, tmp_path: Path
) -> None:
    sizes = write(s3_url)
    with loader_of(s3_url, tmp_path) as loader:
        first = read_epochs(loader)
        assert loader.stats().delivery == first
        second = read_epochs(loader, 3)
        # the new worker opens the shards that the first worker cached
        assert counts_of(second) == (len(sizes), len(sizes), sum(sizes))
        assert second.stall_s > first.stall_s > NO_STALL
        loader.load_state_dict(loader.state_dict())
        assert loader.stats().delivery == second
    with loader_of(s3_url, tmp_path) as resumed:
        resumed.load_state_dict(loader.state_dict())
        assert resumed.stats().delivery == DeliveryStats(NO_STALL, 0, 0, 0, 0)
        assert resumed.stats() == loader.stats(), "a resume must restore the statistics of the run"


def test_a_logger_gets_plain_numbers_by_flat_names(local_url: str, tmp_path: Path) -> None:
    write(local_url)
    with loader_of([Stream(local_url, name="web")], tmp_path) as loader:
        read_epochs(loader)
        numbers = loader.stats().as_dict()
    assert all(type(value) in (int, float) for value in numbers.values())
    assert numbers["streams/web/share"] == 1
    delivery = vars(loader.stats().delivery)
    assert delivery.pop("recent").batches > 0
    for name, value in delivery.items():
        assert numbers.pop(f"delivery/{name}") == value
    assert not [name for name in numbers if name.startswith("delivery/")]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_speed_of_the_workers_is_known_after_a_second_of_work(
    local_url: str, tmp_path: Path, num_workers: int
) -> None:
    write(local_url)
    with loader_of(local_url, tmp_path, num_workers=num_workers, transform=wait_for_each) as loader:
        assert loader.describe()["tokens_per_s"] is None
        batches = iter(loader)
        tokens = next(batches).num_tokens
        made = loader.stats().delivery
        assert made.start_tokens >= tokens > 0
        assert made.start_s > 0
        while loader.describe()["tokens_per_s"] is None:
            assert made.tokens_made < 50_000
            tokens += next(batches).num_tokens
            made = loader.stats().delivery
        shown = list_settings(loader)
    assert made.tokens_made >= tokens
    assert "that one rank's workers can make, not counting their start" in shown


@pytest.mark.parametrize(
    ("work", "speed"),
    [
        ({"fetch_s": 14.0, "tokens_made": 85_000}, None),
        ({"fetch_s": 14.0, "tokenize_s": 0.9, "tokens_made": 985_000}, None),
        ({"fetch_s": 14.0, "tokenize_s": 2.0, "tokens_made": 2_085_000}, 4_000_000),
        ({"fetch_s": 16.0, "idle_s": 90.0, "tokens_made": 85_000}, None),
    ],
)
def test_the_speed_of_the_workers_is_that_after_the_start(
    work: dict[str, Any], speed: float | None
) -> None:
    started = DeliveryStats(0.0, 0, 0, 0, 0, start_s=14.0, start_tokens=85_000, **work)
    assert started.tokens_per_s(4) == speed
