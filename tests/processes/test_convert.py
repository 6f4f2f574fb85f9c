"""Any number of processes writes the same bytes for every format. If any process is killed, the
next run resumes."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudload.tools.convert.convert import convert_to_mds
from testkit import ROOT
from testkit.conversions import (
    QUIET,
    SETTINGS,
    convert_lines,
    convert_until,
    dataset_bytes,
    documents,
    read_dataset,
    texts,
    write_corpus,
)
from testkit.input_kinds import INPUT_KINDS
from testkit.patience import SOON_S


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80,000 short documents in 4 files, which two processes take seconds to convert."""
    folder = tmp_path_factory.mktemp("large")
    lines = "".join(f'{{"text": "{"stone water " * (row % 60)}"}}\n' for row in range(20_000))
    for number in range(4):
        (folder / f"{number}.jsonl").write_text(lines)
    return folder


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for processes in (1, 2, 5):
        convert_to_mds(
            corpus,
            tmp_path / f"out{processes}",
            processes=processes,
            progress=False,
            shard_bytes=20_000,
            block_bytes=9_000,
            segment_bytes=30_000,
        )
    one = dataset_bytes(str(tmp_path / "out1"))
    assert len(one) > 20
    assert len({name.rpartition("/")[0] for name in one}) > 5
    assert dataset_bytes(str(tmp_path / "out2")) == one
    assert dataset_bytes(str(tmp_path / "out5")) == one


# restores the default for Ctrl-C, because a shell's background jobs and their children ignore it
HEEDFUL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from cloudload.cli import main
sys.exit(main())
"""


SMALL = ("--shard-bytes", "64k", "--segment-bytes", "1m")


def start_cli(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HEEDFUL, "convert", *arguments, "--quiet"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_and_finish(corpus: Path, out: str, kills: int, seed: int, flags: Sequence[str]) -> None:
    """Run the CLI repeatedly: kill the first `kills` runs at random moments, and let one finish."""
    draw = random.Random(seed)
    for attempt in itertools.count():
        processes = ("--processes", str(draw.choice([1, 2, 3])))
        process = start_cli(str(corpus), out, *SMALL, *processes, *flags)
        if attempt < kills:
            _wait_for_progress(process, out, draw.randint(1, 6))
            time.sleep(draw.random() * 0.05)
            process.kill()
        printed, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            assert attempt == kills, (
                f"the conversion finished after {attempt} of {kills} kills. Use a larger corpus"
            )
            return
        assert process.returncode == -signal.SIGKILL, (printed, errors)
        assert not Path(out, "index.json").exists()


def _wait_for_progress(process: subprocess.Popen[bytes], out: str, shards: int) -> None:
    """Wait until a run has stored `shards` more shards, so that every killed run makes progress."""
    before = _journal_length(out)
    while process.poll() is None and _journal_length(out) < before + shards:
        time.sleep(0.002)


def _journal_length(out: str) -> int:
    return len(list(Path(out).rglob("shard.*")))


def check_kills(tmp_path: Path, kills: int, seed: int, *, has_text: bool = True) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=4, lines=1000 * kills)
    options: dict[str, Any] = {**QUIET, "shard_bytes": 64 << 10, "segment_bytes": 1 << 20}
    flags: tuple[str, ...] = ()
    if not has_text:
        options |= {"text_key": None, "keep": ["text:json", "n"]}
        flags = ("--text-key", "none", "--keep", "text:json,n")
    convert_to_mds(corpus, tmp_path / "whole", **options)
    kill_and_finish(corpus, str(tmp_path / "killed"), kills, seed, flags)
    assert dataset_bytes(str(tmp_path / "killed")) == dataset_bytes(str(tmp_path / "whole"))
    reports = [
        json.loads((tmp_path / name / "convert-report.json").read_text())["report"]
        for name in ("whole", "killed")
    ]
    for report in reports:
        for name in ("seconds", "out", "resumed_shards"):
            del report[name]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("has_text", [True, False], ids=["text", "no text"])
def test_a_conversion_killed_again_and_again_ends_in_the_same_bytes(
    tmp_path: Path, has_text: bool
) -> None:
    check_kills(tmp_path, kills=4, seed=7, has_text=has_text)


@pytest.mark.long
def test_twenty_kills_end_in_the_same_bytes(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=20, seed=11)


def test_a_killed_worker_is_an_error(large_corpus: Path, tmp_path: Path) -> None:
    process = start_cli(str(large_corpus), str(tmp_path / "out"), *SMALL, "--processes", "2")
    _wait_for_progress(process, str(tmp_path / "out"), 3)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [
        child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"was killed by SIGKILL" in errors
    assert b"Traceback" not in errors
    assert not (tmp_path / "out" / "index.json").exists()


def test_workers_do_not_outlive_their_parent(large_corpus: Path, tmp_path: Path) -> None:
    process = start_cli(str(large_corpus), str(tmp_path / "out"), *SMALL, "--processes", "2")
    _wait_for_progress(process, str(tmp_path / "out"), 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + SOON_S
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, children))


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_says_how_to_resume(large_corpus: Path, tmp_path: Path) -> None:
    process = start_cli(str(large_corpus), str(tmp_path / "out"), *SMALL, "--processes", "2")
    _wait_for_progress(process, str(tmp_path / "out"), 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        errors.decode().strip().splitlines()[-1]
        == "cloudload: interrupted. To resume, run the same command again, without --overwrite"
    )


def test_a_line_may_be_longer_than_any_block(tmp_path: Path) -> None:
    long = "long " * 1_000_000
    report = convert_lines(
        tmp_path,
        [json.dumps({"text": text}) for text in ("a", long, "b")],
        block_bytes=1000,
        processes=2,
    )
    assert report.documents == 3
    assert texts(str(tmp_path / "out"), tmp_path) == ["a", long, "b"]


def test_bad_and_empty_records_are_counted_alike_by_any_number_of_processes(tmp_path: Path) -> None:
    lines = ['{"text": ""}', '{"text": "a"}', "x", '{"text": "b"}', ""] * 50
    reports = [
        convert_lines(tmp_path, lines, skip_bad=True, overwrite=True, block_bytes=40, processes=n)
        for n in (1, 3)
    ]
    for report in reports:
        assert (report.documents, report.empty, report.bad, report.text_bytes) == (100, 50, 50, 100)
        assert [record.split(": ")[0].rpartition(":")[2] for record in report.bad_records] == [
            str(3 + 5 * n) for n in range(20)
        ]


# ---------------------------------------------------------------- formats


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
