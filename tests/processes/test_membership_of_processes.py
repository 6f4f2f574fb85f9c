"""In the elastic example, the other ranks continue without a killed rank until it rejoins."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from cloudload.tools.count import count_tokens
from testkit.corpora import random_documents, write_mds
from testkit.noted_steps import TOKENIZER, check_steps, read_steps
from testkit.torchrun import Corpus, Run, launch
from testkit.warm_start import Program, start

RANKS, BATCH_SIZE, SEQ_LEN = 4, 3, 32


def test_ranks_that_die_and_come_back_lose_no_row_and_repeat_none(tmp_path: Path) -> None:
    """Rank 2 of four ranks is killed. After it has rejoined, rank 0 is killed."""
    data = write_mds(tmp_path / "data", random_documents(3, 400), shard_bytes=8_000)
    count_tokens(data, tokenizer=TOKENIZER, processes=1, progress=False)
    (notes := tmp_path / "notes").mkdir()
    worlds = watch(start_example(data, notes, tmp_path / "cache"), victims=["rank-2", "rank-0"])
    sizes = [len(members.split(", ")) for members in worlds]
    assert sizes == [4, 3, 4, 3, 4], worlds
    steps = read_steps(notes)
    assert {stop - begin for begin, stop, _ in steps} == {3 * BATCH_SIZE, 4 * BATCH_SIZE}
    check_steps(steps, data, tmp_path / "cache-of-one", seq_len=SEQ_LEN)


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
        "testkit.elastic_rank",
        [str(notes), data, *flat],
        {"OMP_NUM_THREADS": "1", "ELASTIC_RANKS": str(RANKS)},
    )


def watch(job: Program, victims: list[str]) -> list[str]:
    """Kill each victim after 4 steps on all ranks, and finally the whole job.

    Returns the members of each world, as the job printed them.
    """
    pids: dict[str, int] = {}
    worlds, lines, steps = [], [], 0
    for line in job.stdout:
        lines.append(line)
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
    assert job.returncode == -signal.SIGKILL, ("".join(lines[-20:]), errors[-4000:])
    return worlds


def test_a_rank_that_others_leave_for_a_new_world_raises_an_error(tmp_path: Path) -> None:
    corpus = Corpus.write(tmp_path)
    run = Run(ranks=3, batch_size=2, workers=1, batches=50)
    with pytest.raises(subprocess.CalledProcessError):
        launch(corpus, tmp_path, 0, run, set_world_on=[0, 1])
    error = (tmp_path / "error-0-2.txt").read_text()
    assert "RanksDisagreeError: the exchange between ranks failed" in error
    assert "call set_world on every remaining rank" in error
