"""Processes that share a cache folder fetch each shard once and completely, never mix datasets, and
stay within the cache limit. `describe()` names the smallest limit that loaders accept."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.data.cache.cache_folder import ACCOUNT
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, DatasetError, FailureKind, StoreError
from cloudload.system.temp_files import TAG, make_folder
from cloudload.system.verified_files import is_unmodified, mark_verified
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import ids_of, make_loader
from testkit.shard_caches import DOCUMENTS, RETRY, flip, loader_of, texts_of, write

REQUESTS = {"zstd": 1, "parquet": 2}
"""The number of requests for a shard: one, or one for a footer and one for row groups."""

in_both_forms = pytest.mark.parametrize("compression", REQUESTS)


def cached_files(root: Path) -> list[str]:
    """The sorted names of cached files, without the hashes in the names of shards."""
    found = (
        path.name for path in root.rglob("*") if path.is_file() and path.name not in (TAG, ACCOUNT)
    )
    return sorted(re.sub(r"-[0-9a-f]{12}(?=\.mds)", "", name) for name in found)


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2", "parquet"])
def test_shards_come_whole_from_every_store(
    store_url: str, tmp_path: Path, compression: str | None
) -> None:
    corpus = write(store_url, compression=compression)
    root = tmp_path / "cache"
    assert texts_of(corpus, root) == DOCUMENTS
    in_place = compression is None and "://" not in store_url
    assert cached_files(root) == (
        [] if in_place else [shard.raw.name for shard in corpus.datasets[0].shards]
    )


def test_a_loader_reads_the_same_rows_from_every_store(
    store_url: str, local_url: str, tmp_path: Path
) -> None:
    rows = []
    for url in (local_url + "-plain", store_url):
        write(url)
        with loader_of(url, tmp_path / "cache", batch_size=8, num_workers=2) as loader:
            rows.append(ids_of(loader.take(4)))
    assert rows[0] == rows[1]


@in_both_forms
def test_a_second_reader_fetches_nothing(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    first = len(s3_proxy.requests("shard"))
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    assert len(s3_proxy.requests("shard")) == first


@in_both_forms
def test_processes_that_share_a_cache_fetch_each_shard_once(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    before = len(s3_proxy.requests("shard"))
    processes = [start_reading(corpus, tmp_path) for _ in range(4)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    requests = len(s3_proxy.requests("shard")) - before
    assert requests == REQUESTS[compression] * len(corpus.shard_sizes)


def start_reading(corpus: Corpus, root: Path) -> Any:
    """Start a process that reads all documents, and fails if they are not as they were written."""

    def read() -> None:
        assert texts_of(corpus, root) == DOCUMENTS

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    return process


def test_a_republished_dataset_is_never_mixed_with_the_old_one(s3_url: str, tmp_path: Path) -> None:
    old = write(s3_url)
    assert texts_of(old, tmp_path) == DOCUMENTS
    changed = [text.upper() for text in DOCUMENTS]
    write_mds(s3_url, changed, shard_bytes=4_000, compression="zstd")
    assert texts_of(open_corpus([Location(s3_url, RETRY)]), tmp_path) == changed
    assert texts_of(old, tmp_path) == DOCUMENTS


def test_a_corrupt_shard_is_fetched_again_and_then_named(s3_url: str, tmp_path: Path) -> None:
    corpus = write(s3_url)
    name = corpus.datasets[0].shards[1].stored.name
    whole = Location(f"{s3_url}/{name}").read()
    Location(f"{s3_url}/{name}").write(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(
        DatasetError, match=rf"{name} has the hash xxh64 \w+, but the index says \w+\. This was"
    ):
        texts_of(corpus, tmp_path)
    Location(f"{s3_url}/{name}").write(whole[:-7])
    with pytest.raises(DatasetError, match=r"of the [\d,]+ bytes that the index lists"):
        texts_of(corpus, tmp_path)
    Location(f"{s3_url}/{name}").write(whole)
    assert texts_of(corpus, tmp_path) == DOCUMENTS


@in_both_forms
def test_a_shard_corrupted_on_its_way_once_is_fetched_again(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    s3_proxy.fail("GET .*shard.00001", "truncate", at=300, times=1)
    assert texts_of(corpus, tmp_path) == DOCUMENTS


def find_other(path: Path) -> Path:
    """The cached file of shard 3, in the same folder as the shard at `path`."""
    return next(path.parent.glob("shard.00003*.mds"))


def replace_by_link(path: Path, name: str) -> None:
    path.unlink()
    path.symlink_to(path.with_name(name))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "emptied": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another byte in its head": lambda path: flip(path, 5),
    "another byte in a text": lambda path: flip(path, path.stat().st_size - 3),
    "another shard": lambda path: path.write_bytes(find_other(path).read_bytes()),
    "a link": lambda path: replace_by_link(path, find_other(path).name),
}


@in_both_forms
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cached_shard_that_was_written_to_is_fetched_again(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, damage: str, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    s3_proxy.set_faults([])
    DAMAGES[damage](next(tmp_path.rglob("shard.00002*.mds")))
    for _ in range(2):
        assert texts_of(corpus, tmp_path) == DOCUMENTS
        assert len(s3_proxy.requests("shard")) == REQUESTS[compression]


@in_both_forms
def test_a_cache_that_was_copied_is_checked_and_not_fetched(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    assert texts_of(corpus, tmp_path / "one") == DOCUMENTS
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copyfile)
    s3_proxy.set_faults([])
    assert texts_of(corpus, tmp_path / "two") == DOCUMENTS
    assert s3_proxy.requests("shard") == []
    assert all(is_unmodified(path.stat()) for path in (tmp_path / "two").rglob("*.mds"))


def test_without_a_hash_a_cached_shard_that_was_written_to_is_fetched_again(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    corpus = write(s3_url, hashes=())
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    s3_proxy.set_faults([])
    flip(next(tmp_path.rglob("shard.00002-*.mds")), 3_000)
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    assert len(s3_proxy.requests("shard")) == 1


@in_both_forms
def test_a_disk_that_forgets_bits_is_found_out_on_request(
    s3_url: str, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    victim = next(tmp_path.rglob("shard.00002*.mds"))
    flip(victim, victim.stat().st_size - 3)
    mark_verified(victim)  # hide the change, as if the disk had corrupted the file
    assert texts_of(corpus, tmp_path) != DOCUMENTS
    assert texts_of(corpus, tmp_path, verify="always") == DOCUMENTS


def test_hashes_are_not_checked_where_that_is_switched_off(s3_url: str, tmp_path: Path) -> None:
    corpus = write(s3_url, compression=None)
    name = corpus.datasets[0].shards[2].stored.name
    whole = Location(f"{s3_url}/{name}").read()
    Location(f"{s3_url}/{name}").write(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(DatasetError, match="xxh64"):
        texts_of(corpus, tmp_path)
    assert texts_of(corpus, tmp_path, verify="off") != DOCUMENTS
    with pytest.raises(DatasetError, match="xxh64"):
        texts_of(corpus, tmp_path)


def test_a_shard_whose_head_is_not_the_indexs_is_refused(s3_url: str, tmp_path: Path) -> None:
    write(s3_url, hashes=())
    index = json.loads(Location(f"{s3_url}/index.json").read())
    one, other = index["shards"][1], index["shards"][2]
    one["samples"], other["samples"] = one["samples"] + 1, other["samples"] - 1
    Location(f"{s3_url}/index.json").write(json.dumps(index).encode())
    with pytest.raises(
        DatasetError,
        match=r"shard\.00001\.mds\.zstd does not contain the \d+ samples that its index lists\. "
        r"This",
    ):
        texts_of(open_corpus([Location(s3_url, RETRY)]), tmp_path)
    assert not list(tmp_path.rglob("shard.00001-*.mds*"))


@in_both_forms
def test_what_another_process_evicted_is_let_go_of(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr("cloudload.data.cache.shard_cache.TOUCH_EVERY_S", 0.0)
    corpus = write(s3_url, compression=compression)
    cache = ShardCache(corpus, tmp_path, limit_bytes=1 << 20, threads=1, verify="once")
    for number in range(4):
        cache.shard(number)
    next(tmp_path.rglob("shard.00001*.mds")).unlink()
    cache.shard(5)
    maps = Path("/proc/self/maps").read_text()
    assert "shard.00002" in maps
    assert not re.search(r"shard\.00001.*\(deleted\)", maps)
    cache.close()


@in_both_forms
def test_a_missing_shard_reaches_the_training_loop_with_its_url(
    s3_url: str, tmp_path: Path, compression: str
) -> None:
    shards = write(s3_url, compression=compression).datasets[0].shards
    name, _, _ = shards[3].stored.name.partition("#")
    loader = loader_of(s3_url, tmp_path, batch_size=8, num_workers=2, retry=RETRY)
    Location(f"{s3_url}/{name}").delete()
    start = time.monotonic()
    with loader, pytest.raises(StoreError, match=f"{s3_url}/{name}") as caught:
        list(loader)
    assert caught.value.kind is FailureKind.MISSING_OBJECT
    assert time.monotonic() - start < 60


@in_both_forms
def test_eviction_leaves_other_files_in_the_folder(
    s3_url: str, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    own, lengths = tmp_path / "notes" / "deep" / "thesis.txt", tmp_path / "lengths" / "some"
    make_folder(lengths.parent)
    for path in (own, lengths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("years of work" * 1000)
        os.utime(path, (0, 0))
    largest = max(shard.raw.bytes for shard in corpus.datasets[0].shards)
    assert texts_of(corpus, tmp_path, limit_bytes=4 * largest) == DOCUMENTS
    assert own.exists()
    assert lengths.exists()


@in_both_forms
def test_the_cache_stays_within_its_limit_and_evicts_the_least_recently_used(
    s3_url: str, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    sizes = [shard.raw.bytes for shard in corpus.datasets[0].shards]
    limit = 4 * max(sizes)
    cache = ShardCache(corpus, tmp_path, limit_bytes=limit, threads=1, verify="once")
    mapped = []
    for number in range(len(sizes)):
        mapped.append(cache.shard(number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("shard.*")) <= limit
    assert cached_files(tmp_path)[-1] == corpus.datasets[0].shards[-1].raw.name
    # a shard that is evicted while it is mapped stays readable
    text = mapped[0].column_index("text")
    assert mapped[0].read_bytes(0, text).decode() == DOCUMENTS[0]
    cache.close()


@in_both_forms
def test_a_limit_below_the_working_set_is_refused_with_the_number_that_would_do(
    s3_url: str, tmp_path: Path, compression: str
) -> None:
    write(s3_url, compression=compression)

    def loader_with(limit: int) -> CloudLoader:
        return loader_of(
            s3_url, tmp_path, batch_size=4, num_workers=1, download_threads=1, cache_limit=limit
        )

    with (
        loader_with(9_000) as loader,
        pytest.raises(CacheError, match=r"cache_limit 9,000 is below the [\d,]+ bytes") as refusal,
    ):
        next(iter(loader))
    enough = int(str(refusal.value).split("Raise it to ")[1].split(" or more")[0].replace(",", ""))
    with loader_with(enough) as loader:
        assert sum(len(batch["input_ids"]) for batch in loader)


@in_both_forms
def test_what_a_killed_process_left_is_swept_and_waited_for_by_nobody(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, compression: str
) -> None:
    corpus = write(s3_url, compression=compression)
    s3_proxy.fail("GET .*shard.00000", "stall", at=10, seconds=30, times=1)
    process = start_reading(corpus, tmp_path)
    deadline = time.monotonic() + 20
    while not list(tmp_path.rglob("*.part")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert list(tmp_path.rglob("*.part"))
    assert texts_of(corpus, tmp_path, limit_bytes=1 << 30) == DOCUMENTS
    assert all(name.endswith(".mds") for name in cached_files(tmp_path))


@in_both_forms
def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(
    s3_url: str, small_disk: Path, compression: str
) -> None:
    corpus = write(s3_url, shard_bytes=80_000, compression=compression)
    with pytest.raises(CacheError, match="no space left in"):
        texts_of(corpus, small_disk)
    assert cached_files(small_disk) == []


# ---------------------------------------------------------------- the smallest limit


@pytest.mark.parametrize(
    ("shard_samples", "compression"), [([60], None), ([1, 59], "zstd"), ([20, 20, 20], None)]
)
def test_a_cache_that_holds_all_shards_is_large_enough(
    tmp_path: Path, s3_url: str, shard_samples: list[int], compression: str | None
) -> None:
    documents = random_documents(7, 60)
    write_mds(s3_url, documents, shard_samples=shard_samples, compression=compression)
    options = {"num_workers": 1, "download_threads": 16, "epochs": 1}
    sized = make_loader(s3_url, local=tmp_path / "one", **options)
    shards = [shard.raw.bytes for shard in sized.worker_plan().recipe.corpus.datasets[0].shards]
    assert sized.describe()["working_set_bytes"] == sum(shards)
    cache = tmp_path / "two"
    with make_loader(s3_url, local=cache, cache_limit=sum(shards), **options) as loader:
        assert loader.stats().documents == 0
        list(loader)
        assert loader.stats().documents == len(documents)


def test_the_working_set_is_the_least_cache_limit_that_is_accepted(
    tmp_path: Path, s3_url: str
) -> None:
    write_mds(s3_url, random_documents(7, 60), shard_bytes=2_000)
    needed = make_loader(s3_url, local=tmp_path).describe()["working_set_bytes"]
    with make_loader(s3_url, local=tmp_path, cache_limit=needed) as loader:
        next(iter(loader))
    too_small = make_loader(s3_url, local=tmp_path, cache_limit=needed - 1)
    with pytest.raises(CacheError, match=f"Raise it to {needed:,}"):
        next(iter(too_small))


def test_a_limit_below_one_shard_is_told_that_only_smaller_shards_help(
    tmp_path: Path, s3_url: str
) -> None:
    write_mds(s3_url, random_documents(7, 60), shard_samples=[60])
    with pytest.raises(CacheError, match="write the data with smaller shards") as caught:
        next(iter(make_loader(s3_url, local=tmp_path, cache_limit=1_000)))
    assert "num_workers" not in str(caught.value)
