"""Local datasets are read in place and never modified."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudload.data.cache import memory_shards
from cloudload.data.cache.memory_shards import MemoryShards
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import Corpus
from cloudload.data.mds.shard import Shard
from cloudload.errors import CacheError, DatasetError, StoreError
from testkit.shard_caches import DOCUMENTS, flip, loader_of, texts_of, write


def test_a_local_dataset_is_never_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    for compression in (None, "zstd"):
        corpus = write(str(folder / str(compression)), compression=compression)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert texts_of(corpus, tmp_path / "cache", limit_bytes=20_000) == DOCUMENTS
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_shard_in_place_is_checked_on_request(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"), compression=None)
    flip(tmp_path / "mds" / "shard.00002.mds", 3_000)
    assert len(texts_of(corpus, tmp_path / "cache")) == len(DOCUMENTS)
    with pytest.raises(
        DatasetError, match=r"shard\.00002\.mds has the hash xxh64 .*Convert or copy the dataset"
    ):
        texts_of(corpus, tmp_path / "cache", verify="always")


def test_a_cache_within_a_dataset_is_refused(tmp_path: Path) -> None:
    write(str(tmp_path / "mds"))
    before = sorted(tmp_path.rglob("*"))
    for cache in (tmp_path / "mds", tmp_path / "mds" / "cache"):
        with pytest.raises(CacheError, match="is inside the dataset"):
            loader_of(str(tmp_path / "mds"), cache, batch_size=2)
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- shards in memory


@contextmanager
def open_shards(corpus: Corpus, root: Path) -> Iterator[MemoryShards]:
    shards = MemoryShards(corpus, ShardCache(corpus, root, verify="once"), threads=2)
    try:
        yield shards
    finally:
        shards.close()


def texts_in(shard: Shard) -> list[str]:
    return shard.read_texts(range(shard.info.samples), shard.column_index("text"))


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2", "br"])
def test_every_shard_is_whole_and_leaves_no_file(tmp_path: Path, compression: str | None) -> None:
    corpus = write(str(tmp_path / "mds"), compression=compression)
    found = []
    with open_shards(corpus, tmp_path / "cache") as shards:
        for number in range(len(corpus.shard_sizes)):
            shards.prefetch(dict.fromkeys(range(number, min(number + 3, len(corpus.shard_sizes)))))
            found += texts_in(shards.shard(number))
    assert found == DOCUMENTS
    assert not list((tmp_path / "cache").rglob("*.mds"))


def test_a_shard_in_use_is_not_overwritten_by_the_next(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"))
    with open_shards(corpus, tmp_path / "cache") as shards:
        first = shards.shard(0)
        texts, data = texts_in(first), bytes(first.data)
        assert texts_in(shards.shard(1)) != texts
        assert (texts_in(first), bytes(first.data)) == (texts, data)


def test_a_value_in_use_is_not_overwritten_by_the_next(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"))
    with open_shards(corpus, tmp_path / "cache") as shards:
        value = shards.shard(0).data[100:200]
        before = bytes(value)
        shards.shard(1)
        assert bytes(value) == before


def test_the_buffer_of_a_shard_that_nobody_uses_is_used_again(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"))
    with open_shards(corpus, tmp_path / "cache") as shards:
        shards.shard(0)
        buffer = shards._buffer
        shards.shard(1)
        assert shards._buffer is buffer


@pytest.mark.parametrize("compression", ["zstd", "gz"])
def test_a_damaged_shard_is_fetched_twice_and_then_named(
    tmp_path: Path, compression: str, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write(str(tmp_path / "mds"), compression=compression)
    name = corpus.datasets[0].shards[2].stored.name
    flip(tmp_path / "mds" / name, 40)
    with open_shards(corpus, tmp_path / "cache") as shards:
        with pytest.raises(
            DatasetError, match=rf"{name} has the hash xxh64 .* second invalid download"
        ):
            shards.shard(2)
        assert "Fetching it again" in caplog.text
        assert texts_in(shards.shard(3))


def test_a_shard_that_is_repaired_in_between_is_read(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"))
    path = tmp_path / "mds" / corpus.datasets[0].shards[0].stored.name
    flip(path, 40)
    with open_shards(corpus, tmp_path / "cache") as shards:
        shards.prefetch({0: None})
        shards._fetches[0].result()
        flip(path, 40)
        assert texts_in(shards.shard(0)) == DOCUMENTS[: int(corpus.shard_sizes[0])]


def test_a_missing_shard_is_an_error_of_its_store(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"))
    (tmp_path / "mds" / corpus.datasets[0].shards[1].stored.name).unlink()
    with open_shards(corpus, tmp_path / "cache") as shards:
        shards.prefetch({1: None})
        with pytest.raises(StoreError):
            shards.shard(1)


def test_a_shard_too_large_for_memory_goes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(str(tmp_path / "mds"))
    monkeypatch.setattr(memory_shards, "MOST_BYTES", 0)
    with open_shards(corpus, tmp_path / "cache") as shards:
        shards.prefetch({0: None})
        assert texts_in(shards.shard(0)) == DOCUMENTS[: int(corpus.shard_sizes[0])]
    assert list((tmp_path / "cache").rglob("*.mds"))


def test_a_prefetch_that_failed_is_repeated_when_the_shard_is_needed(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"), compression="zstd")
    [missing] = (tmp_path / "mds").glob("shard.00001.*")
    missing.rename(tmp_path / "moved")
    for shards in open_both(corpus, tmp_path / "cache"):
        shards.prefetch({1: None})
        while not shards._fetches[1].done():
            time.sleep(0.01)
        with pytest.raises((StoreError, DatasetError), match=r"shard\.00001"):
            shards.shard(1)
        shards.prefetch({1: None})
        while not shards._fetches[1].done():
            time.sleep(0.01)
        (tmp_path / "moved").rename(missing)
        assert texts_in(shards.shard(1))
        missing.rename(tmp_path / "moved")
        shards.close()


def open_both(corpus: Corpus, root: Path) -> Iterator[MemoryShards | ShardCache]:
    yield ShardCache(corpus, root / "one", verify="once")
    with open_shards(corpus, root / "two") as shards:
        yield shards
