"""Every input format is converted to the same bytes by any number of processes and after any
interruption."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.tools.convert.convert import convert_to_mds
from testkit import ROOT
from testkit.conversions import SETTINGS, convert_until, dataset_bytes, documents, read_dataset
from testkit.input_kinds import INPUT_KINDS

ROWS = [{"text": f'{text}"\n, é', "n": number} for number, text in enumerate(documents(300))]


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_every_format_is_read_alike_in_processes_and_after_interruptions(
    tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "in"
    if kind != "mds":  # MDSWriter creates the folder
        source.mkdir()
    INPUT_KINDS[kind](source, ROWS)
    options: dict[str, Any] = {**SETTINGS, "keep": ["n:int"]}
    whole = convert_to_mds(source, tmp_path / "whole", **options)
    samples = read_dataset(str(tmp_path / "whole"), tmp_path)
    assert [{"text": sample["text"], "n": sample["n"]} for sample in samples] == ROWS
    for shards in (0, 3, 9):
        convert_until(shards, source, tmp_path / "out", **options)
    resumed = convert_to_mds(source, tmp_path / "out", **options)
    assert (resumed.resumed_shards, resumed.input_bytes) == (12, whole.input_bytes)
    convert_to_mds(source, tmp_path / "many", **{**options, "processes": 3})
    expected = dataset_bytes(str(tmp_path / "whole"))
    assert dataset_bytes(str(tmp_path / "out")) == expected
    assert dataset_bytes(str(tmp_path / "many")) == expected


STDIN = {
    "csv": ("csv", "a.csv"),
    "json": ("json", "a.json"),
    "arrow": ("arrow", "a.feather"),
    "webdataset": ("webdataset", "a.tar.gz"),
}


@pytest.mark.parametrize("kind", STDIN)
def test_every_format_of_one_file_is_read_from_stdin(tmp_path: Path, kind: str) -> None:
    format, name = STDIN[kind]
    source = tmp_path / "in"
    source.mkdir()
    INPUT_KINDS[kind](source, ROWS)
    data = (source / name).read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    convert_to_mds(source / name, tmp_path / "file", **SETTINGS)
    expected = read_dataset(str(tmp_path / "file"), tmp_path)
    command = [sys.executable, "-m", "cloudload", "convert", "-", str(tmp_path / "out")]
    sizes = ["--shard-bytes", "2000", "--processes", "1", "--quiet"]
    ended = subprocess.run(
        [*command, "--format", format, *sizes],
        cwd=ROOT,
        input=data,
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    found = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in found] == [sample["text"] for sample in expected]


def test_an_mds_dataset_is_not_read_from_stdin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an MDS dataset cannot be read from stdin"):
        convert_to_mds("-", tmp_path / "out", format="mds", **SETTINGS)
