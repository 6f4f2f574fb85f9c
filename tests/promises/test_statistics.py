"""Statistics report each stream's share of the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader
from testkit.trainer import streams_of

DOCUMENTS = random_documents(12, 300)


def test_streams_have_shares_of_the_tokens(tmp_path: Path) -> None:
    folders = [write_mds(tmp_path / name, DOCUMENTS, shard_bytes=4_000) for name in "ab"]
    with make_loader(
        streams_of(*folders), local=tmp_path / "cache", seq_len=64, num_lanes=8, batch_size=8
    ) as loader:
        assert [stream.share for stream in loader.stats().streams.values()] == [0, 0]
        list(loader.take(50))
        stats = loader.stats()
        assert {name: stream.share for name, stream in stats.streams.items()} == pytest.approx(
            {"a": 0.7, "b": 0.3}, abs=0.01
        )
        assert stats.streams["a"].share == stats.streams["a"].tokens / stats.tokens
