"""Local datasets are read in place and never modified."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.errors import CacheError, DatasetError
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
