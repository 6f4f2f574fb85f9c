"""Datasets in a folder of this machine are read in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Retry, Stream
from cloudload.cache.shard_cache import ShardCache
from cloudload.errors import CacheError, DatasetError
from cloudload.mds.dataset import Corpus, open_corpus
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds

DOCUMENTS = random_documents(11, 600)


QUICK = Retry(timeout_s=2.0, deadline_s=6.0, pause_s=0.05)


def write(url: str, **settings: Any) -> Corpus:
    write_mds(url, DOCUMENTS, **{"shard_bytes": 4_000, "compression": "zstd", **settings})
    return open_corpus([Stream(url)], QUICK)


def texts_of(corpus: Corpus, root: Path, **settings: Any) -> list[str]:
    cache = ShardCache(corpus, root, QUICK, **{"threads": 3, "verify": "once", **settings})
    try:
        shards = [cache.shard(number) for number in range(len(corpus.shard_sizes))]
        return [
            shard.read_bytes(sample, shard.column_index("text")).decode()
            for shard in shards
            for sample in range(shard.info.samples)
        ]
    finally:
        cache.close()


def loader_of(url: str, cache: Path, **settings: Any) -> CloudLoader:
    return CloudLoader(
        url, local=cache, tokenizer=byte_tokenizer(), eos=EOS, seq_len=64, epochs=1, **settings
    )


def test_a_local_dataset_is_never_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    for compression in (None, "zstd"):
        corpus = write(str(folder / str(compression)), compression=compression)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        assert texts_of(corpus, tmp_path / "cache", limit_bytes=20_000) == DOCUMENTS
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def flip(path: Path, at: int) -> None:
    """Write another byte in place, as whatever shares the disk might."""
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_shard_in_place_is_checked_on_request(tmp_path: Path) -> None:
    corpus = write(str(tmp_path / "mds"), compression=None)
    flip(tmp_path / "mds" / "shard.00002.mds", 3_000)
    assert len(texts_of(corpus, tmp_path / "cache")) == len(DOCUMENTS)
    with pytest.raises(
        DatasetError, match=r"shard\.00002\.mds has xxh64 .*Convert or copy it again"
    ):
        texts_of(corpus, tmp_path / "cache", verify="always")


def test_a_cache_within_a_dataset_is_refused(tmp_path: Path) -> None:
    write(str(tmp_path / "mds"))
    before = sorted(tmp_path.rglob("*"))
    for cache in (tmp_path / "mds", tmp_path / "mds" / "cache"):
        with (
            loader_of(
                str(tmp_path / "mds"), cache, batch_size=2, num_workers=0, tokenizer_backend="hf"
            ) as loader,
            pytest.raises(CacheError, match="is inside the dataset"),
        ):
            next(iter(loader))
    assert sorted(tmp_path.rglob("*")) == before
