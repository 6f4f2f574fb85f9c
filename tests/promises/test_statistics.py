"""Shares of streams, and numbers for a logger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.stats import DeliveryStats
from cloudload.storage.objects import list_objects
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds
from tests.support.trainer import streams_of

DOCUMENTS = random_documents(12, 300)


def write(url: str, *, compression: str | None = "zstd") -> list[int]:
    """Write the documents; the sizes of their shards in the store."""
    write_mds(url, DOCUMENTS, shard_bytes=4_000, compression=compression)
    return [stored.bytes for stored in list_objects(url) if "shard." in stored.url]


def loader_of(data: Any, cache: Path, **settings: Any) -> CloudLoader:
    defaults = {"seq_len": 64, "num_lanes": 8, "batch_size": 8, "num_workers": 1}
    return CloudLoader(
        data, local=cache, tokenizer=byte_tokenizer(), eos=EOS, **{**defaults, **settings}
    )


def read_epochs(loader: CloudLoader, number: int = 1) -> DeliveryStats:
    """Read on until so many epochs are read, whole."""
    for _ in loader:
        if all(stream.epoch > number for stream in loader.stats().streams.values()):
            break
    return loader.stats().delivery


def test_streams_have_shares_of_the_tokens(tmp_path: Path) -> None:
    folders = [write_mds(tmp_path / name, DOCUMENTS, shard_bytes=4_000) for name in "ab"]
    with loader_of(streams_of(*folders), tmp_path / "cache", num_workers=0) as loader:
        assert [stream.share for stream in loader.stats().streams.values()] == [0, 0]
        list(loader.take(50))
        stats = loader.stats()
        assert {name: stream.share for name, stream in stats.streams.items()} == pytest.approx(
            {"a": 0.7, "b": 0.3}, abs=0.01
        )
        assert stats.streams["a"].share == stats.streams["a"].tokens / stats.tokens


def test_a_logger_gets_plain_numbers_by_flat_names(local_url: str, tmp_path: Path) -> None:
    write(local_url)
    with loader_of([Stream(local_url, name="web")], tmp_path) as loader:
        read_epochs(loader)
        numbers = loader.stats().as_dict()
    assert all(type(value) in (int, float) for value in numbers.values())
    assert numbers["streams/web/share"] == 1
    names = ["stall_s", "cache_hits", "cache_misses", "bytes_downloaded"]
    assert [numbers[f"delivery/{name}"] for name in names] == list(
        vars(loader.stats().delivery).values()
    )
