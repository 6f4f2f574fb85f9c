"""`examples/train_sft.py` trains the same weights, killed and resumed, on any number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch

from testkit import ROOT
from testkit.servers import free_ports
from testkit.warm_start import stand_in

STEPS, SAVE_EVERY, GLOBAL_BATCH = 8, 3, 10
SIZES = {"seq-len": 128, "width": 32, "depth": 1, "workers": 1}


def run(folder: Path, name: str, ranks: int, *more: str, kill_at: int | None = None) -> str:
    """Run the example, and return what it printed. With `kill_at`, it is killed."""
    log = folder / f"log-{name}-{ranks}"
    log.mkdir()
    numbers = {**SIZES, "steps": STEPS, "save-every": SAVE_EVERY, "global-batch": GLOBAL_BATCH}
    options = json.dumps({"log": str(log), "kill_at": kill_at})
    command = [
        *(*stand_in(), "torch.distributed.run", f"--nproc-per-node={ranks}"),
        *(f"--master-port={free_ports(1)[0]}", "--no-python"),
        *(*stand_in(), "tests.frameworks.record", options),
        *(str(ROOT / "examples" / "train_sft.py"), str(folder / "data"), "--float64"),
        *(f"--{key}={value}" for key, value in numbers.items()),
        *("--accumulate=2", f"--out={folder / name}", f"--cache={folder / 'cache'}", *more),
    ]
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert bool(ended.returncode) == bool(kill_at), ended.stdout + ended.stderr[-6000:]
    return ended.stdout


def test_a_run_killed_on_2_ranks_and_resumed_on_3_has_the_weights_of_one_rank(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path, "whole", 1)
    run(tmp_path, "cut", 2, kill_at=11)
    saved = weights(tmp_path / "cut")
    assert saved["step"] == SAVE_EVERY
    resumed = run(tmp_path, "cut", 3, "--resume")
    assert resumed.splitlines() == whole.splitlines()[SAVE_EVERY:]
    one, other = (weights(tmp_path / name) for name in ("whole", "cut"))
    assert (one["step"], other["step"]) == (STEPS, STEPS)
    assert one["loader"]["rows"] == other["loader"]["rows"] == STEPS * GLOBAL_BATCH
    for name, weight in one["model"].items():
        assert torch.allclose(weight, other["model"][name], rtol=0, atol=1e-9), name
    assert not torch.allclose(one["model"]["embed.weight"], saved["model"]["embed.weight"])


def weights(folder: Path) -> dict[str, Any]:
    """The checkpoint of a run."""
    states: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return states
