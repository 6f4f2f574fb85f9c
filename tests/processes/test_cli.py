"""Commands work when they are started from a shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.convert import convert_to_mds
from testkit import ROOT
from testkit.conversions import QUIET, dataset_bytes, texts, write_corpus


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


def test_help_is_instant_and_ends_with_an_example() -> None:
    code = (
        "import sys; from cloudload import cli\ntry: cli.main(['convert', '--help'])\nexcept "
        "SystemExit: print(*sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    usage, modules = printed.rsplit("\n", 2)[:2]
    assert usage.splitlines()[-1].startswith("  cloudload convert ")
    assert not {"torch", "numpy", "boto3", "streaming", "datasets", "tqdm"} & set(modules.split())


def test_workers_of_an_array_finish_together(tmp_path: Path, cli: Any) -> None:
    corpus = write_corpus(tmp_path / "corpus", lines=20)
    arguments = ["convert", str(corpus), str(tmp_path / "out"), "--segment-bytes", "1k"]
    assert re.search(
        r"lacks \d+ of \d+ segments", cli(*arguments, "--worker", "1/2", "--processes", "1").out
    )
    assert re.search(r"segments are missing \(0, 2, 4", cli(*arguments, "--finish", status=1).err)
    assert "is complete" in cli(*arguments, "--worker", "0/2", "--processes", "1").out
    cli(*arguments, "--finish")
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
