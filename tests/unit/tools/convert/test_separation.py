"""A conversion never replaces, removes, or reads again what it was given as input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.cli import main
from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from testkit.conversions import QUIET, read_dataset

LINE = '{"text": "x"}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the corpora `c` and `d`, and the dataset `data`."""
    monkeypatch.chdir(tmp_path)
    for name in ("c/a.jsonl", "c/b.jsonl", "d/a.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(LINE)
    convert("c", "data")
    return tmp_path


def convert(inputs: Any, out: str, **options: Any) -> int:
    """Convert, and return the number of documents."""
    return convert_to_mds(inputs, out, **{**QUIET, **options}).documents


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


# ---------------------------------------------------------------- the output


@pytest.mark.parametrize("out", ["data", "link", "./data/", "x/../data", "link/../data", "file"])
def test_a_dataset_is_never_removed_while_it_is_read(here: Path, out: str) -> None:
    Path("link").symlink_to("data")
    out = f"file://{here}/data" if out == "file" else out
    before = contents("data")
    for inputs in ("data", "link", "data/*", "data/index.json"):
        with pytest.raises(ValueError, match="contains input files"):
            convert(inputs, out, overwrite=True, shard_bytes=2000)
    assert contents("data") == before


@pytest.mark.parametrize(
    ("inputs", "out"),
    [
        ("c", "c/mds"),
        ("c", "link/mds"),
        ("link", "c/mds"),
        ("c/**", "c/mds"),
        ("c/**/*.json", "link/x/mds"),
        ("c/*", "c/mds"),
        ("*/*.jsonl", "c/x.jsonl"),
    ],
)
def test_an_output_that_a_rerun_would_read_is_refused(inputs: str, out: str) -> None:
    Path("link").symlink_to("c")
    with pytest.raises(ValueError, match="is inside the input"):
        convert(inputs, out)
    assert contents("c").keys() == {"c/a.jsonl", "c/b.jsonl"}


def test_an_output_beside_what_a_glob_selects_is_accepted() -> None:
    assert convert("c/*.jsonl", "c/mds") == 2
    assert convert("*/a.jsonl", "out") == 2
    assert convert("c/**/*.jsonl", "c/mds", overwrite=True) == 2


def test_an_input_that_leads_into_the_output_through_a_link_is_refused() -> None:
    Path("d/more").symlink_to("../data")
    before = contents("data")
    with pytest.raises(ValueError, match="contains input files"):
        convert("d", "data", overwrite=True, format="lines")
    assert contents("data") == before


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard link", "link"])
def test_a_shard_of_the_output_that_is_an_input_is_not_removed(here: Path, link: Any) -> None:
    Path("copy").mkdir()
    for path in Path("data").iterdir():
        link(here / path, here / "copy" / path.name)
    before = contents("data")
    with pytest.raises(ConvertError, match=r"is the file .* of the output data, which would be re"):
        convert("copy", "data", overwrite=True, shard_bytes=2000)
    assert contents("data") == before


# ---------------------------------------------------------------- other files


@pytest.mark.parametrize("rejects", ["c/b.jsonl", "link.jsonl", "c/x.jsonl", "file"])
@pytest.mark.parametrize("inputs", ["c", "c/*.jsonl", ["c/a.jsonl", "c/b.jsonl", "c/x.jsonl"]])
def test_rejects_never_replace_or_become_an_input(here: Path, inputs: Any, rejects: str) -> None:
    Path("link.jsonl").symlink_to("c/b.jsonl")
    rejects = f"file://{here}/c/b.jsonl" if rejects == "file" else rejects
    with pytest.raises(ValueError, match=r"rejects \(--rejects\) .* is (inside )?the input"):
        convert(inputs, "out", skip_bad=True, rejects=rejects)
    assert contents("c") == {f"c/{name}.jsonl": LINE.encode() for name in "ab"}


def test_rejects_replace_only_rejects() -> None:
    Path("notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"notes\.txt exists, but is not a file of rejects"):
        convert("c", "out", skip_bad=True, rejects="notes.txt")
    assert Path("notes.txt").read_text() == "precious"
    Path("c/b.jsonl").write_text("{}\n")
    for _ in range(2):
        assert convert("c", "out", skip_bad=True, rejects="r", overwrite=True) == 1
    Path("empty").touch()
    assert convert("c", "out", skip_bad=True, rejects="empty", overwrite=True) == 1


@pytest.mark.parametrize("inputs", ["c", "c/*", "c/a.jsonl"])
def test_a_report_on_an_input_is_refused(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", inputs, "out", "--quiet", "--report", "./c/a.jsonl"]) != 0
    said = capsys.readouterr().err
    assert re.search(r"--report .*c/a\.jsonl(, which would replace| is inside the input)", said)
    assert Path("c/a.jsonl").read_text() == LINE
    assert not Path("out").exists()


def test_output_that_is_redirected_into_the_input_is_refused() -> None:
    command = [sys.executable, "-m", "cloudload", "convert", "c", "out", "--json"]
    with Path("c/report.json").open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "the standard output" in done.stderr
    assert "c/report.json is inside the input c" in done.stderr


# ---------------------------------------------------------------- one file twice


@pytest.mark.parametrize(
    "again",
    ["{here}/c/a.jsonl", "./c/a.jsonl", "c/../c/a.jsonl", "link/a.jsonl", "l.jsonl", "c/a*"],
)
def test_one_file_in_two_spellings_is_refused(here: Path, again: str) -> None:
    Path("link").symlink_to("c")
    Path("l.jsonl").symlink_to("c/a.jsonl")
    with pytest.raises(ValueError, match=r"c/a\.jsonl is in the inputs twice"):
        convert(["c/a.jsonl", again.format(here=here)], "out")


def test_a_folder_that_a_link_leads_to_again_is_refused_by_both_names() -> None:
    Path("c/2024").mkdir()
    Path("c/2024/x.jsonl").write_text(LINE)
    Path("c/latest").symlink_to("2024")
    with pytest.raises(ValueError, match=r"c/2024/x\.jsonl is .*, again as c/latest/x\.jsonl"):
        convert("c", "out")
    assert convert("c/2*/*", "out") == 1


def test_a_link_to_another_input_is_refused_but_not_two_links_to_one_blob() -> None:
    Path("blobs").mkdir()
    Path("blobs/1").write_text(LINE)
    for name in ("x", "y"):  # as in a snapshot of the Hub, in which two files have one content
        Path(f"d/{name}.jsonl").symlink_to("../blobs/1")
    assert convert("d", "out") == 3
    Path("d/z.jsonl").symlink_to("a.jsonl")
    with pytest.raises(ValueError, match=r"d/a\.jsonl is in the inputs twice, again as d/z\.jsonl"):
        convert("d", "out2")


def test_the_same_names_in_two_folders_are_different_files(tmp_path: Path) -> None:
    assert convert(["c", "d"], "out") == 3
    ids = {sample["id"] for sample in read_dataset("out", tmp_path)}
    assert ids == {"0/a.jsonl:1", "0/b.jsonl:1", "1/a.jsonl:1"}
