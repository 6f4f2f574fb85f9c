"""The working set in `describe()` is the smallest `cache_limit`, in bytes, that loaders accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.errors import CacheError
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


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
