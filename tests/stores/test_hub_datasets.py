"""A dataset is converted by its name on the Hugging Face Hub, from its files, in parallel."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert import inputs
from cloudload.tools.convert.hub_dataset import HubName, choose_files, parse_card
from testkit import ROOT
from testkit.conversions import QUIET, convert, dataset_bytes, read_dataset, texts
from testkit.fake_hub import FakeHub, as_the_hub, fake_hub
from testkit.web_server import Fault

CARD = b"""---
license: odc-by
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
- config_name: en
  data_files:
  - {split: train, path: ["data/en-[0-9]/*.parquet"]}
  - {split: test, path: "test/*"}
---
# A data set
"""


def parquet(*texts: str) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": list(texts)}), buffer)
    return buffer.getvalue()


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


FILES = {
    ".gitattributes": b"*.parquet filter=lfs",
    "README.md": CARD,
    "dataset_infos.json": b"{}",
    "data/de-1/000.parquet": parquet("de a", "de b"),
    "data/en-1/000.parquet": parquet("en a", "en b"),
    "data/en-2/000.parquet": parquet("en c"),
    "sample/10BT/000.parquet": parquet("en a"),
    "test/000.parquet": parquet("test"),
}


@pytest.fixture(scope="module")
def server(hub_server: FakeHub) -> Iterator[FakeHub]:
    with as_the_hub(hub_server):
        yield hub_server


@pytest.fixture
def hub(server: FakeHub) -> FakeHub:
    """A Hub with the dataset `o/fine`, which has a card, samples, and a test split."""
    server.add("o/fine", FILES)
    server.site.lines.clear()
    return server


# ---------------------------------------------------------------- which files


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("hf://o/fine", ["data/de-1/0", "data/en-1/0", "data/en-2/0"]),
        ("hf://o/fine/sample-10BT", ["sample/10BT/0"]),
        ("hf://o/fine/en", ["data/en-1/0", "data/en-2/0"]),
        ("hf://o/fine/en?split=test", ["test/0"]),
        ("hf://o/fine?config=en&split=test", ["test/0"]),
        ("hf://o/fine@v1.0/en?split=test", ["test/0"]),
    ],
)
def test_the_card_says_which_files_a_config_has(url: str, found: list[str]) -> None:
    names = [name for name in FILES if name.endswith("parquet")]
    chosen = choose_files(names, parse_card(CARD), HubName.parse(url, None), url)
    assert [name.removesuffix("00.parquet") for name in chosen] == found


@pytest.mark.parametrize(
    ("names", "url", "found"),
    [
        (["shard_0.parquet", "shard_1.parquet"], "hf://o/n", [0, 1]),
        (["en/train-0.parquet", "en/test-0.parquet", "de/train-0.parquet"], "hf://o/n/en", [0]),
        (["en/c4-train.0-of-2.json.gz", "en/c4-validation.0-of-1.json.gz"], "hf://o/n", [0]),
        (["a/train.json", "a/dev.json"], "hf://o/n?split=validation", [1]),
        (["data/deu/train/0.parquet", "data/deu/test/0.parquet"], "hf://o/n/deu", [0]),
        (["data/train-0.jsonl", "data/other.jsonl"], "hf://o/n", [0]),
        (["training/0.jsonl", "trainings/0.jsonl"], "hf://o/n", [0]),
        (["data/test-0.parquet"], "hf://o/n", [0]),
    ],
)
def test_without_configs_names_tell_the_split(names: list[str], url: str, found: list[int]) -> None:
    chosen = choose_files(names, [], HubName.parse(url, None), url)
    assert chosen == [names[index] for index in found]


@pytest.mark.parametrize(
    ("names", "url", "says"),
    [
        (["data/0.parquet", "sample/0.parquet"], "hf://o/n", "may be there twice.*hf://o/n/data"),
        (["a/0.parquet", "a/0.jsonl"], "hf://o/n", "several formats, such as a/0.jsonl and"),
        (["a/train-0.parquet"], "hf://o/n?split=val", "no files of the split 'val'.*are train"),
        (["a/test-0.parquet"], "hf://o/n?split=train", "no files of the split 'train'"),
        (["a/0.parquet"], "hf://o/n/b", "no config 'b'.*Its folders are a"),
    ],
)
def test_what_is_not_clear_asks(names: list[str], url: str, says: str) -> None:
    with pytest.raises(ConvertError, match=says):
        choose_files(names, [], HubName.parse(url, None), url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hf://o/n", r"has several configs. Its configs are en and de. Add one, as in hf://o/n/en"),
        ("hf://o/n/fr", r"has no config 'fr'. Its configs are en and de"),
    ],
)
def test_configs_without_a_default_ask(url: str, says: str) -> None:
    configs = [{"config_name": name, "data_files": f"{name}/*"} for name in ("en", "de")]
    with pytest.raises(ConvertError, match=says):
        choose_files(["en/0.parquet"], configs, HubName.parse(url, None), url)


@pytest.mark.parametrize("card", [b"", b"# no head", b"---\n: [\n---\n", b"---\nconfigs: 5\n---\n"])
def test_a_card_without_configs_has_none(card: bytes) -> None:
    assert parse_card(card) == []


# ---------------------------------------------------------------- conversions


def test_a_dataset_is_converted_from_its_files(hub: FakeHub, tmp_path: Path) -> None:
    report = convert("hf://o/fine", tmp_path / "out", segment_bytes=600)
    assert any("/tree/" in line for line in hub.requests)
    assert texts(str(tmp_path / "out"), tmp_path) == ["de a", "de b", "en a", "en b", "en c"]
    assert (report.files, report.segments) == (3, 3)
    [first, *_] = read_dataset(str(tmp_path / "out"), tmp_path)
    assert first["id"] == "data/de-1/000.parquet:1"


def test_workers_and_reruns_read_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 600, **QUIET}
    convert_to_mds("hf://o/fine", tmp_path / "whole", **options)
    convert_to_mds("hf://o/fine", tmp_path / "out", worker="0/2", **options)
    hub.add("o/fine", {**FILES, "data/en-2/000.parquet": parquet("en x")})
    convert_to_mds("hf://o/fine", tmp_path / "out", worker="1/2", **options)
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))
    convert_to_mds("hf://o/fine", tmp_path / "new", worker="0/2", **options)
    hub.add("o/fine", {**FILES, "data/en-2/000.parquet": parquet("en y")})
    with pytest.raises(ConvertError, match=r"data/en-2/000.parquet changed after"):
        convert_to_mds("hf://o/fine", tmp_path / "new", **options)


def test_rows_are_read_only_without_files_of_records(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(url: str, _: str | None) -> None:
        asked.append(url)
        raise ConvertError("rows")

    monkeypatch.setattr(inputs, "_load_dataset", load)
    hub.add("o/script", {"README.md": b"", "script.py": b"", "logo.png": b""})
    with pytest.raises(ConvertError, match="rows"):
        convert("hf://o/script", tmp_path / "out")
    convert("hf://o/fine", tmp_path / "out")
    assert asked == ["hf://o/script"]


def test_a_busy_hub_is_asked_again_and_a_cut_file_is_read_on(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("o/lines", {"a.jsonl": lines(*(f"{n} " * 20 for n in range(5_000)))})
    hub.site.faults += [
        Fault("GET /api.*revision", status=429, headers={"Retry-After": "1"}),
        Fault("/tree/", status=503),
        Fault("GET /cdn", cut_at=100_000),
    ]
    assert convert("hf://o/lines", tmp_path / "out").documents == 5_000
    assert not hub.site.faults


def test_a_missing_dataset_is_named(hub: FakeHub, tmp_path: Path) -> None:
    assert hub.endpoint
    with pytest.raises((ConvertError, StoreError), match=r"hf://(datasets/)?o/none"):
        convert("hf://o/none", tmp_path / "out")


@pytest.mark.parametrize("token", ["hf_0123456789", ""])
def test_a_gated_dataset_needs_the_token(tmp_path: Path, token: str) -> None:
    with fake_hub("o/fine", {"0" * 40: FILES}) as hub:
        hub.site.token = "hf_0123456789"
        variables = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "cloudload", "convert", "hf://o/fine", tmp_path / "out"]
        done = subprocess.run(
            [*map(str, command), "--processes", "2", "--segment-bytes", "600"],
            env={**os.environ, **variables, "HF_HOME": str(tmp_path)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == (0 if token else 1), done.stderr
    assert ("401" in done.stderr) == (not token)
    assert "hf_0123456789" not in done.stderr + done.stdout
