"""Runs as `stress.chats` draws them have the rows that transformers and a simple packer expect."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudload.testing import Leg, run_leg
from stress.chats.campaign import draw_run
from testkit import ROOT
from testkit.conversation_oracle import fill_row
from testkit.loaders import ranks

LEGS = [
    Leg(1, batch_size=6, batches=4),
    Leg(3, workers=2, batch_size=2, batches=4),
    Leg(7, workers=1, batch_size=1, batches=3),
    Leg(2, batch_size=5, batches=8),
]


@pytest.mark.parametrize("number", range(8))
def test_every_row_on_a_chain_of_worlds_is_that_of_the_oracle(tmp_path: Path, number: int) -> None:
    run = draw_run(random.Random(number), tmp_path, number, rows=90)
    documents = run.documents()
    oracle, state = run.open_oracle(documents), None
    ends = run.options["epochs"] is not None
    for index, leg in enumerate(LEGS):
        seq_len = run.seq_lens[index > 1]
        options: dict[str, Any] = {
            **run.options,
            "tokenizer": run.tokenizer,
            "eos": "auto",
            "seq_len": seq_len,
            "local": tmp_path / "cache",
            "lengths": "require" if run.has_lengths else "off",
        }
        is_last = ends and leg == LEGS[-1]
        own_leg = replace(leg, batches=None) if is_last else leg
        start = len(oracle.rows)
        found, states = run_leg(ranks(run.data, **options), own_leg, state)
        state = states[-1]
        is_over = oracle.take(len(found), run.weights, first=False, seq_len=seq_len)
        for row, own in enumerate(found, start):
            expected = fill_row(oracle.rows[row], documents, seq_len)
            assert (list(own.input_ids), list(own.labels), list(own.spans)) == expected, row
        if is_last:
            assert is_over


@pytest.mark.long
@pytest.mark.timeout(900)
def test_jobs_that_are_killed_again_and_again_read_the_rows_of_the_oracle() -> None:
    command = [sys.executable, "-m", "stress.chats", "--rows", "1600", "--rows-per-run", "400"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    summary = json.loads(ended.stdout[ended.stdout.index("{\n") :])
    assert summary["failures"] == []
    assert summary["runs"] >= 2
    assert summary["ranks killed"] >= 10
