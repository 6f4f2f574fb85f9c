"""If processes that convert segments are killed at random, the next run writes the same objects,
even if the store fails at times."""

from __future__ import annotations

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

from cloudload.convert import convert_to_mds, index_files
from cloudload.data.mds import virtual_index
from testkit import ROOT
from testkit.conversions import dataset_bytes
from testkit.corpora import random_documents
from testkit.fault_proxy import Fault
from testkit.parquet_files import write_corpus
from testkit.segments import SETTINGS, mixed_corpus

OPTIONS = ["--shard-bytes", "8000", "--segment-bytes", "12000", "--keep", "n"]
FAULTS = [
    Fault("", "status", share=0.05),
    Fault("", "reset", share=0.03),
    Fault("GET", "truncate", share=0.02, at=100),
]
"""Faults that make about one request in ten fail."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about 60 segments in four formats."""
    return mixed_corpus(tmp_path_factory.mktemp("mixed") / "corpus")


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hash of every object that a conversion in one process writes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert_to_mds(corpus, out, **{**SETTINGS, "block_bytes": 8 << 20})
    return dataset_bytes(str(out))


@pytest.fixture(params=["s3", "failing s3"])
def out(request: pytest.FixtureRequest, s3_url: str) -> str:
    """A URL on the S3 server, directly or through a proxy that fails one request in ten."""
    if request.param == "failing s3":
        request.getfixturevalue("s3_proxy").set_faults(FAULTS)
    return s3_url


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cloudload", "convert", "--quiet", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_one(process: subprocess.Popen[bytes], draw: random.Random) -> None:
    """Kill the process, or one of its workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        pids = [int(pid) for pid in children.read_text().split()]
        os.kill(draw.choice([process.pid, *pids]), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass


def run_until_finished(
    commands: list[tuple[str, ...]],
    kills: int,
    seed: int,
    options: Sequence[object] = OPTIONS,
    **where: Any,
) -> int:
    """Run the commands at once, and repeat those that fail until all succeed.

    In the first rounds, processes of random commands are killed, until `kills` commands have
    failed. A command that was not chosen for a kill must succeed. Returns the number of failures.
    """
    draw, killed, waiting = random.Random(seed), 0, list(commands)
    while waiting:
        running = [(command, start(*where.values(), *options, *command)) for command in waiting]
        doomed = set(draw.sample(range(len(running)), min(len(running), max(0, kills - killed))))
        time.sleep(draw.uniform(0.5, 4))
        for number in doomed:
            kill_one(running[number][1], draw)
        for number, (command, process) in enumerate(running):
            _, errors = process.communicate()
            assert process.returncode == 0 or number in doomed, errors.decode()
            assert b"Traceback" not in errors
            if process.returncode == 0:
                waiting.remove(command)
            else:
                killed += 1
    return killed


MODES: dict[str, list[tuple[str, ...]]] = {
    "2 processes": [("--processes", "2")],
    "5 processes": [("--processes", "5")],
    "array": [("--processes", "1", "--worker", f"{number}/7") for number in range(7)],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("commands", "out"),
    [
        (MODES["2 processes"], "s3"),
        ([("--processes", "1", "--worker", f"{number}/3") for number in range(3)], "failing s3"),
    ],
    ids=["2 processes-s3", "array-failing s3"],
    indirect=["out"],
)
def test_a_conversion_killed_at_random_ends_in_the_same_objects(
    commands: list[tuple[str, ...]], corpus: Path, out: str, whole: dict[str, str]
) -> None:
    run_until_finished(commands, kills=3, seed=1, corpus=corpus, out=out)
    assert dataset_bytes(out) == whole


def test_copies_of_shards_that_are_killed_end_in_the_same_objects(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_index, "SHARD_BYTES", 1_000)
    write_corpus(tmp_path / "in", random_documents(3, 200), row_group_size=8)
    index_files(tmp_path / "in", tmp_path / "index")
    options: list[object] = ["--like", tmp_path / "index", "--segment-bytes", "2000"]
    like: dict[str, Any] = {"like": tmp_path / "index", "segment_bytes": 2_000}
    convert_to_mds([], tmp_path / "whole", **like, processes=1, progress=False)
    commands = MODES["2 processes"]
    run_until_finished(commands, kills=3, seed=4, options=options, out=s3_url)
    assert dataset_bytes(s3_url) == dataset_bytes(str(tmp_path / "whole"))


@pytest.fixture(scope="module")
def counted(
    corpus: Path, tokenizer_file: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The hash of every object that a conversion in one process writes while it counts tokens."""
    out = tmp_path_factory.mktemp("counted") / "out"
    convert_to_mds(corpus, out, **{**SETTINGS, "block_bytes": 8 << 20, "tokenizer": tokenizer_file})
    return dataset_bytes(str(out))


@pytest.mark.parametrize(
    ("mode", "kills"), [("2 processes", 3), pytest.param("array", 20, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("out", ["s3"], indirect=True)
def test_a_conversion_that_counts_and_is_killed_ends_in_the_same_objects(
    *, mode: str, kills: int, corpus: Path, out: str, tokenizer_file: str, counted: dict[str, str]
) -> None:
    assert any(name.startswith("/lengths/") for name in counted)
    commands = [(*command, "--tokenizer", tokenizer_file) for command in MODES[mode]]
    run_until_finished(commands, kills=kills, seed=3, corpus=corpus, out=out)
    assert dataset_bytes(out) == counted


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_many_kills_end_in_the_same_objects(
    mode: str, corpus: Path, out: str, whole: dict[str, str]
) -> None:
    killed = run_until_finished(MODES[mode], kills=20, seed=2, corpus=corpus, out=out)
    print(f"{killed} killed")
    assert dataset_bytes(out) == whole
