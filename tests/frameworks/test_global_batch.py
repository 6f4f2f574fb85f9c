"""In every framework, steps of `global_batch_size` rows train alike on any number of ranks.

`global_batch_run.py` trains under torchrun. With 3 ranks, they have different numbers of rows.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from testkit import ROOT
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader
from testkit.servers import free_ports
from tests.frameworks.global_batch_run import GLOBAL_BATCH, RATE, STEPS, Model
from tests.frameworks.test_killed_and_resumed import Framework

ENVIRONMENTS = {
    "torch": "dev",
    "accelerate": "dev",
    "Lightning": "dev",
    "HF Trainer": "dev",
    "Composer": "composer",
}
SHORT = [("torch", 3), ("HF Trainer", 3)]
CASES = [
    pytest.param(name, ranks, marks=() if (name, ranks) in SHORT else pytest.mark.long)
    for name in ENVIRONMENTS
    for ranks in (1, 3)
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_counted(tmp_path_factory.mktemp("data") / "mds", random_documents(5, 120))


@cache
def expected_weights(data: str) -> dict[str, torch.Tensor]:
    """The weights after the same steps in one process without a framework."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = make_loader(data, batch_size=GLOBAL_BATCH, mask_edges=True, num_lanes=None)
    for batch in loader.take(STEPS):
        (model(**batch)["loss"] / batch.num_trained_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_the_weights_are_those_of_one_rank(
    name: str, ranks: int, data: str, tmp_path: Path
) -> None:
    framework = Framework("", ENVIRONMENTS[name])
    command = [
        *framework.command("torch.distributed.run"),
        f"--nproc-per-node={ranks}",
        f"--master-port={free_ports(1)[0]}",
        "--no-python",
        *framework.command("tests.frameworks.global_batch_run"),
        *(name, data, str(tmp_path)),
    ]
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NODE_RANK": "0",
    }
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=280, check=False
    )
    expected = expected_weights(data)
    for rank in range(ranks):
        file = tmp_path / f"{rank}.pt"
        assert file.exists(), ended.stdout[-3000:] + ended.stderr[-6000:]
        found = torch.load(file, weights_only=True)
        for weight, tensor in expected.items():
            # Composer weights microbatches in float32
            most = 1e-7 if name == "Composer" else 1e-9
            torch.testing.assert_close(found[weight], tensor, rtol=0, atol=most)
