"""If a loader gets unconverted data, the command in its error works when pasted into a shell."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload import Stream
from cloudload.errors import DatasetError
from testkit import ROOT
from testkit.loaders import make_loader

TEXTS = ["one", "two", "three"]
LINES = "".join(f'{{"text": "{text}"}}\n' for text in TEXTS)


def write_gz(folder: Path) -> None:
    (folder / "my corpus").mkdir()
    (folder / "my corpus" / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))


def write_beside_others(folder: Path) -> None:
    (folder / "corpus" / "deep").mkdir(parents=True)
    (folder / "corpus" / "deep" / "a.jsonl").write_text(LINES)
    (folder / "corpus" / "logo.png").write_bytes(b"\x89PNG")
    (folder / "corpus" / "README.md").write_text("about")


def write_parquet(folder: Path) -> None:
    (folder / "corpus").mkdir()
    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, folder / "corpus" / "a.parquet")


def write_splits(folder: Path) -> None:
    for split in ("train", "val"):
        (folder / "corpus" / split).mkdir(parents=True)
        (folder / "corpus" / split / "a.jsonl").write_text(LINES)


def save_dataset(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder / "corpus")


def save_splits(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    datasets.DatasetDict(train=rows, val=rows).save_to_disk(folder / "corpus")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("write", "data", "read"),
    [
        (write_gz, "my corpus", "my corpus-mds"),
        (write_gz, "my corpus/a.jsonl.gz", "my corpus/a-mds"),
        (write_gz, "my corpus/*.gz", "my corpus-mds"),
        (write_beside_others, "corpus", "corpus-mds"),
        (write_parquet, "./corpus/", "corpus-mds"),
        (write_splits, "corpus", Stream("corpus-mds", split="val")),
        (write_splits, Stream("corpus", split="train"), Stream("corpus-mds", split="train")),
        (save_dataset, "corpus", "corpus-mds"),
        (save_splits, "corpus", Stream("corpus-mds", split="train")),
    ],
)
def test_the_command_makes_a_dataset_that_the_loader_reads(
    write: Callable[[Path], Any],
    data: str | Stream,
    read: str | Stream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError) as caught:
        make_loader(data)
    command = str(caught.value).partition("Run: ")[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", command], env=environment, check=True, capture_output=True)
    assert make_loader(read).num_samples == len(TEXTS)
