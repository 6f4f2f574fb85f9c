"""The example of JAX, stopped between two checkpoints and resumed, ends with the weights of an
uninterrupted run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from testkit import ROOT
from testkit.corpora import random_documents, write_mds

pytest.importorskip("jax")


def train(data: str, out: Path, *options: str) -> list[float]:
    """Run the example, and return the losses that it prints."""
    sizes = ["--seq-len=32", "--width=32", "--workers=1", "--save-every=10", "--lr=0.01"]
    command = [sys.executable, str(ROOT / "examples" / "train_jax.py"), data, *sizes, *options]
    command += [f"--out={out}", f"--cache={out / 'cache'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [float(line.split()[3]) for line in ended.stdout.splitlines()]


def test_a_resumed_run_continues_with_the_next_batch(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "mds", random_documents(3, 100))
    losses = train(data, tmp_path / "whole", "--steps=60")
    assert losses[-1] < losses[0] - 1
    train(data, tmp_path / "parts", "--steps=35")
    train(data, tmp_path / "parts", "--steps=60", "--resume")
    expected, found = (np.load(tmp_path / run / "checkpoint.npz") for run in ("whole", "parts"))
    assert int(found["step"]) == 60
    for weight in ("embed", "hidden"):
        assert np.array_equal(found[weight], expected[weight])
