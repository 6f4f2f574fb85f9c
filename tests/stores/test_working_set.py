"""The working set that a loader describes is what its cache needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.errors import CacheError
from tests.support.corpora import EOS, byte_tokenizer, random_documents, write_mds


def make_loader(data: str, **options: Any) -> CloudLoader:
    defaults = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 16, "batch_size": 4}
    return CloudLoader(data, **{**defaults, "num_workers": 0, **options})


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
