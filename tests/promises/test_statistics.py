"""Shares of streams, and numbers for a logger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds
from tests.support.trainer import streams_of

DOCUMENTS = random_documents(12, 300)


def loader_of(data: Any, cache: Path, **settings: Any) -> CloudLoader:
    defaults = {"seq_len": 64, "num_lanes": 8, "batch_size": 8, "num_workers": 1}
    return CloudLoader(
        data, local=cache, tokenizer=byte_tokenizer(), eos=EOS, **{**defaults, **settings}
    )


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
