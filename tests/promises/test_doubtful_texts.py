"""A stream whose documents do not look like text logs one warning. The rows do not change."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import CloudLoader, Stream
from testkit.corpora import EOS_ID, byte_tokenizer, random_documents, write_mds
from testkit.loaders import SEQ_LEN, make_loader, rows_of

IDS = [np.random.default_rng(n).integers(0, 128, 20).astype("<i8").tobytes() for n in range(60)]
BASE64 = [base64.b64encode(np.random.default_rng(n).bytes(90)).decode() for n in range(60)]


def warnings_of(loader: CloudLoader, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, "cloudload"), loader:
        list(loader.take(12))
    return [each.getMessage() for each in caplog.records if "look like text" in each.getMessage()]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["token IDs", "base64"])
def test_a_column_that_is_no_text_is_doubted_once_by_name_with_an_excerpt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, num_workers: int
) -> None:
    values, encoding = (IDS, "bytes") if kind == "token IDs" else (BASE64, "str")
    data = write_mds(tmp_path / "web", values, encoding=encoding, shard_bytes=4_000)
    loader = make_loader(data, num_workers=num_workers, start_method="fork")
    [said] = warnings_of(loader, caplog)
    assert "stream 'web' in column 'text' do not look like text. For example, sample " in said
    if kind == "token IDs":
        assert f"{data}/shard.0000" in said
        assert re.search(r"has \d\d% NUL and control characters and starts with .*\\x00", said)
        advice = "Set text_key to a column of text. If 'text' contains token IDs, set tokens_key="
        assert f"{advice}'text'" in said
    else:
        [excerpt] = re.findall(r"is base64 and starts with '(.+)'\. Set text_key", said)
        assert any(text.startswith(excerpt) for text in BASE64)
    assert warnings_of(loader, caplog) == [said]


def test_only_the_doubtful_stream_of_a_mixture_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = write_mds(tmp_path / "good", random_documents(0, 60), shard_bytes=4_000)
    bad = write_mds(tmp_path / "bad", BASE64, shard_bytes=4_000)
    streams = [Stream(good, proportion=1), Stream(bad, proportion=1)]
    [said] = warnings_of(make_loader(streams), caplog)
    assert "stream 'bad'" in said


def decode(sample: dict[str, Any]) -> str:
    return str(sample["text"].decode("latin-1"))


def test_what_a_transform_returns_is_doubted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_mds(tmp_path / "web", IDS, encoding="bytes")
    [said] = warnings_of(make_loader(data, transform=decode), caplog)
    assert "stream 'web' from the transform do not look like text" in said
    assert "Fix the transform" in said


def test_honest_text_is_not_doubted(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(make_loader(folder, num_workers=2, start_method="fork"), caplog)


def test_only_the_first_rank_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = write_mds(tmp_path / "web", BASE64, shard_bytes=4_000)
    assert not warnings_of(make_loader(data, dp_rank=1, dp_world_size=2), caplog)
    assert warnings_of(make_loader(data, dp_rank=0, dp_world_size=2), caplog)


def test_a_doubt_changes_no_row(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "web", BASE64, shard_bytes=4_000)
    loader = make_loader(data, shuffle=False, num_lanes=1, num_canonical_nodes=1)
    tokens = [token for row in rows_of(loader.take(12)) for token in row]
    expected = [token for text in BASE64 for token in [*byte_tokenizer().encode(text).ids, EOS_ID]]
    assert tokens == expected[: 12 * 4 * SEQ_LEN]
