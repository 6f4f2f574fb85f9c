"""The elastic example: a rank is killed, the others continue, and it comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.count import count_tokens
from tests.support import ROOT
from tests.support.corpora import random_documents, write_mds
from tests.support.torchrun import Corpus, Run, launch
from tests.support.warm_start import Program, start

TOKENIZER = str(ROOT / "examples" / "tokenizer")
RANKS, BATCH_SIZE, SEQ_LEN = 4, 3, 32


def test_ranks_that_die_and_come_back_lose_no_row_and_repeat_none(tmp_path: Path) -> None:
    """Two of four are killed: a rank, and later the one with rank 0 among those left."""
    data = write_mds(tmp_path / "data", random_documents(3, 400), shard_bytes=8_000)
    count_tokens(data, tokenizer=TOKENIZER, processes=1, progress=False)
    (notes := tmp_path / "notes").mkdir()
    worlds = watch(start_example(data, notes, tmp_path / "cache"), victims=["rank-2", "rank-0"])
    sizes = [len(members.split(", ")) for members in worlds]
    assert sizes == [4, 3, 4, 3, 4], worlds
    steps = read_steps(notes)
    assert {stop - begin for begin, stop, _ in steps} == {3 * BATCH_SIZE, 4 * BATCH_SIZE}
    loader = CloudLoader(
        data,
        tokenizer=TOKENIZER,
        seq_len=SEQ_LEN,
        batch_size=steps[-1][1],
        num_workers=0,
        lengths="off",
        local=tmp_path / "cache-of-one",
    )
    expected = next(iter(loader))["input_ids"].tolist()
    for begin, stop, ids in steps:
        assert sorted(ids) == sorted(expected[begin:stop]), f"rows {begin} to {stop}"


def start_example(data: str, notes: Path, cache: Path) -> Program:
    arguments = {
        "--steps": 100_000,
        "--global-batch": RANKS * BATCH_SIZE,
        "--seq-len": SEQ_LEN,
        "--workers": 1,
        "--width": 32,
        "--depth": 1,
        "--cache": cache,
    }
    flat = [str(each) for pair in arguments.items() for each in pair]
    return start(
        "tests.support.elastic_rank",
        [str(notes), data, *flat],
        {"OMP_NUM_THREADS": "1", "ELASTIC_RANKS": str(RANKS)},
    )


def watch(job: Program, victims: list[str]) -> list[str]:
    """Kill a rank after some steps of four ranks, once for each victim, and then the whole job.

    Returns the members of the worlds.
    """
    pids: dict[str, int] = {}
    worlds, steps = [], 0
    for line in job.stdout:
        if match := re.match(r"(rank-\d) is process (\d+)", line):
            pids[match[1]] = int(match[2])
        elif match := re.match(r"world \d+: (.*)", line):
            worlds.append(match[1])
            steps = 0
        elif line.endswith(f"{RANKS} ranks\n"):
            steps += 1
            if steps == 4 and not victims:
                os.killpg(job.pid, signal.SIGKILL)
            elif steps == 4:
                os.kill(pids[victims.pop(0)], signal.SIGKILL)
    _, errors = job.communicate(timeout=60)
    assert not victims, errors
    return worlds


def read_steps(notes: Path) -> list[tuple[int, int, list[list[int]]]]:
    """The steps that were committed: first row, row after it, and the IDs that all ranks had."""
    tried: dict[tuple[int, int], list[list[int]]] = {}
    committed: dict[int, int] = {}
    for file in notes.glob("*.jsonl"):
        last: dict[str, Any] = {}
        for line in map(json.loads, file.read_text().splitlines()):
            if "committed" in line:
                assert committed.setdefault(last["rows"], last["world"]) == last["world"]
            else:
                tried.setdefault((line["world"], line["rows"]), []).extend(line["ids"])
                last = line
    begin, steps = 0, []
    for stop, world in sorted(committed.items()):
        ids = tried[world, stop]
        steps.append((stop - len(ids), stop, ids))
        assert steps[-1][0] == begin, f"rows {begin} to {stop} are of {len(ids)}"
        begin = stop
    return steps


def test_a_rank_that_others_leave_for_a_new_world_raises_an_error(tmp_path: Path) -> None:
    corpus = Corpus.write(tmp_path)
    run = Run(ranks=3, batch_size=2, workers=1, batches=50)
    with pytest.raises(subprocess.CalledProcessError):
        launch(corpus, tmp_path, 0, run, set_world_on=[0, 1])
    error = (tmp_path / "error-0-2.txt").read_text()
    assert "RanksDisagreeError: the exchange between ranks failed" in error
    assert "call set_world on every rank" in error
