"""A valid dataset, for tests to damage.

index    of one compressed shard
raw      a shard of the samples `one` and `three`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.mds.index import Column
from cloudload.mds.writer import ShardFormat, encode_sample
from tests.support.corpora import encode_shard, write_mds

TEXT = (Column.of("text", "str"),)


@pytest.fixture
def index(tmp_path: Path) -> dict[str, Any]:
    """A valid index of one compressed shard, for tests to damage."""
    write_mds(tmp_path / "sound", ["one", "two"], compression="zstd")
    found: dict[str, Any] = json.loads((tmp_path / "sound" / "index.json").read_text())
    return found


@pytest.fixture
def raw() -> bytes:
    """A valid shard with the samples `one` and `three`."""
    return encode_shard(
        ShardFormat(TEXT, None, ()),
        [encode_sample(TEXT, {"text": text}) for text in ("one", "three")],
    )
