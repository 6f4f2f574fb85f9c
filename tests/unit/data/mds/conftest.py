"""Fixtures with a valid index and a valid shard, which tests damage.

index    the index of a dataset with one compressed shard
raw      the bytes of an uncompressed shard with the samples `one` and `three`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.mds.shard_entries import Column
from cloudload.data.mds.writer import ShardFormat, encode_sample
from testkit.corpora import encode_shard, write_mds

TEXT = (Column.of("text", "str"),)


@pytest.fixture
def index(tmp_path: Path) -> dict[str, Any]:
    """The valid index of a dataset with one compressed shard. Tests damage it."""
    write_mds(tmp_path / "sound", ["one", "two"], compression="zstd")
    found: dict[str, Any] = json.loads((tmp_path / "sound" / "index.json").read_text())
    return found


@pytest.fixture
def raw() -> bytes:
    """The bytes of a valid shard with the samples `one` and `three`. Tests damage them."""
    return encode_shard(
        ShardFormat(TEXT, None, ()),
        [encode_sample(TEXT, {"text": text}) for text in ("one", "three")],
    )
