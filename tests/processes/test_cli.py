"""Commands work when they are started from a shell or pasted into one, also on a terminal."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pytest

from cloudload import Stream
from cloudload.errors import DatasetError
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.convert import convert_to_mds
from testkit import ROOT
from testkit.conversions import QUIET, dataset_bytes, texts, write_corpus
from testkit.corpora import write_mds
from testkit.loaders import make_loader
from testkit.traced_runs import TracedRuns


def test_stdin_is_json_lines_and_resumes_when_given_again(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"text": f"document {number}"}) + "\n" for number in range(500)
    ).encode()
    command = [
        sys.executable,
        "-m",
        "cloudload",
        "convert",
        "-",
        str(tmp_path / "out"),
        "--quiet",
        "--shard-bytes",
        "2k",
    ]
    broken = subprocess.run(
        command, cwd=ROOT, input=lines + b"nonsense\n", capture_output=True, check=False
    )
    assert broken.returncode == 1
    assert b"stdin:501: the record is invalid JSON" in broken.stderr
    done = subprocess.run(
        [*command, "--skip-bad", "--json"],
        cwd=ROOT,
        input=lines + b"nonsense\n",
        capture_output=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert (report["documents"], report["bad"]) == (500, 1)
    assert len(texts(str(tmp_path / "out"), tmp_path)) == 500


def test_the_command_line_and_the_script_are_the_library(tmp_path: Path, cli: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=20)
    arguments = [
        str(corpus),
        str(tmp_path / "cli"),
        "--keep",
        "n:int32",
        "--hashes",
        "xxh64,sha1",
        "--compression",
        "none",
    ]
    arguments += ["--shard-bytes", "8k", "--split", "train", "--processes", "1"]
    assert (
        "is complete\n  documents  60 ("
        in cli("convert", *arguments, "--report", tmp_path / "report.json").out
    )
    options: dict[str, Any] = {
        "keep": ["n:int32"],
        "hashes": ["sha1", "xxh64"],
        "compression": None,
        "shard_bytes": 8192,
        "split": "train",
    }
    report = convert_to_mds(corpus, tmp_path / "library", **options, **QUIET)
    assert dataset_bytes(str(tmp_path / "cli")) == dataset_bytes(str(tmp_path / "library"))
    written = ConvertReport.from_dict(json.loads((tmp_path / "report.json").read_text()))
    assert (written.documents, written.raw_bytes, written.shards) == (
        report.documents,
        report.raw_bytes,
        report.shards,
    )
    script = [sys.executable, "scripts/convert_to_mds.py", *arguments, "--json"]
    again = subprocess.run(script, cwd=ROOT, capture_output=True, check=True)
    assert json.loads(again.stdout)["already_complete"]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ([[]], {"torch", "numpy", "boto3", "streaming", "datasets", "tqdm"}),
        ([["convert"], ["plan"], ["rows"], ["export"], ["fetch"]], {"torch", "boto3", "streaming"}),
    ],
)
def test_help_is_instant_and_ends_with_an_example(
    arguments: list[list[str]], absent: set[str]
) -> None:
    code = (
        f"import sys; from cloudload import cli\nfor each in {arguments}:\n"
        "    try: cli.main([*each, '--help'])\n    except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    usage, modules = printed.rsplit("\n", 2)[:2]
    assert usage.splitlines()[-1].startswith(" ".join(["  cloudload", *arguments[-1]]))
    assert not absent & set(modules.split())


def test_workers_of_an_array_finish_together(tmp_path: Path, cli: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=20)
    arguments = ["convert", str(corpus), str(tmp_path / "out"), "--segment-bytes", "1k"]
    assert re.search(
        r"lacks \d+ of \d+ segments", cli(*arguments, "--worker", "1/2", "--processes", "1").out
    )
    assert re.search(r"segments are missing \(0, 2, 4", cli(*arguments, "--finish", status=1).err)
    assert "is complete" in cli(*arguments, "--worker", "0/2", "--processes", "1").out
    cli(*arguments[:3], "--finish")
    options: dict[str, Any] = {"segment_bytes": 1024, **QUIET}
    convert_to_mds(corpus, tmp_path / "library", **options)
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "library"))


def test_a_plan_shows_files_and_segments_and_writes_nothing(tmp_path: Path, cli: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=20)
    arguments = ["convert", str(corpus), str(tmp_path / "out"), "--segment-bytes", "1k", "--plan"]
    printed = cli(*arguments).out
    assert re.search(r"jsonl +2 +[\d,]+\njsonl \(gz\) +1 ", printed)
    assert re.search(r"\d+ segments, the largest of [\d,]+ bytes", printed)
    outline = json.loads(cli(*arguments, "--json").out)
    assert outline["files"] == 3
    assert outline["bytes"] == sum(p.stat().st_size for p in corpus.rglob("*") if p.is_file())
    assert not (tmp_path / "out").exists()


def test_options_of_ray_need_ray(tmp_path: Path, cli: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=2)
    assert (
        "require --engine ray"
        in cli("convert", corpus, tmp_path / "out", "--address", "auto", status=1).err
    )


# ---------------------------------------------------------------- a terminal


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ereversed\u2066\x00\x7f\rover"


def read_on_a_terminal(*arguments: Any) -> str:
    """Run `cloudload head` on a terminal with 60 columns, and return its output."""
    parent, child = os.openpty()
    command = [sys.executable, "-m", "cloudload", "head", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "60"}
    with subprocess.Popen(command, stdout=child, env=environment) as process:
        os.close(child)
        parts = []
        while True:
            try:
                part = os.read(parent, 1 << 16)
            except OSError:  # Linux raises this once the writer has closed the terminal
                break
            if not part:
                break
            parts.append(part)
    os.close(parent)
    assert process.returncode == 0
    return b"".join(parts).decode()


def test_a_hostile_document_cannot_drive_the_terminal(tmp_path: Path) -> None:
    extra: dict[str, tuple[str, list[Any]]] = {
        "id": ("str", [HOSTILE]),
        "meta": ("json", [{HOSTILE: HOSTILE}]),
        HOSTILE: ("int8", [1]),
    }
    write_mds(tmp_path, [HOSTILE + "\nsecond line"], extra=extra)
    for options in ([], ["--full"], ["--json"]):
        printed = read_on_a_terminal(tmp_path, *options)
        printed = printed.replace("\r\n", "\n").replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert all(each == "\n" or each.isprintable() for each in printed), options
        assert "reversed" in printed


def test_a_terminal_shows_text_wrapped_and_shortened(tmp_path: Path) -> None:
    write_mds(tmp_path, ["one two three " * 100 + "end"], extra={"id": ("str", ["a/1"])})
    lines = read_on_a_terminal(tmp_path).replace("\r\n", "\n").splitlines()
    assert lines[0] == "\x1b[1msample 0  shard.00000.mds  id a/1  1,403 characters\x1b[0m"
    assert lines[1].startswith("    one two three ")
    assert lines[-2:] == ["  … 603 more characters", ""]
    assert max(map(len, lines[1:])) <= 60
    assert read_on_a_terminal(tmp_path, "--full").replace("\r\n", "\n").endswith("end\n\n")


# ---------------------------------------------------------------- pasted commands


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


def write_feather(folder: Path) -> None:
    (folder / "corpus").mkdir()
    table = pyarrow.table({"text": TEXTS})
    pyarrow.feather.write_feather(table, folder / "corpus" / "a.feather")


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
        (write_feather, "./corpus/", "corpus-mds"),
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


def test_steps_are_traced_in_a_separate_process(traced: TracedRuns, tmp_path: Path) -> None:
    read = traced.consume()
    path = read.write(tmp_path / "state.json")
    command = [sys.executable, "-m", "cloudload", "trace", str(path), "--steps", "30", "--json"]
    command += ["--local", read.local]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
        span.text for span in read.spans[29]
    ]
