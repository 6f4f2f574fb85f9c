"""In Ray Train, a run whose worker is killed continues, and a resume on another world, too."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit import ROOT
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader

pytest.importorskip("ray.train.torch")

GLOBAL_BATCH, STEPS = 10, 9


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    ray.init(num_cpus=4, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    yield
    ray.shutdown()


def train_loop(config: dict[str, Any]) -> None:
    """Train on each of Ray's workers, as the page on Ray Train shows."""
    import ray.train

    context = ray.train.get_context()
    loader = make_loader(
        config["data"],
        batch_size=None,
        global_batch_size=GLOBAL_BATCH,
        num_lanes=None,
        local=config["cache"],
    )
    checkpoint = ray.train.get_checkpoint()
    folder = config["resume_from"] if checkpoint is None else checkpoint.path
    if folder is not None:
        loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
    rank = context.get_world_rank()
    log = Path(config["log"], f"{context.get_world_size()}-{rank}.jsonl").open("a", buffering=1)
    with loader:
        for batch in loader.take(config["stop"] - loader.rows // GLOBAL_BATCH):
            step = loader.rows // GLOBAL_BATCH
            kill = Path(config["log"], "killed")
            if step == config["kill_at"] and rank == 1 and not kill.exists():
                kill.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            rows = zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True)
            log.write(json.dumps([step, [row for row in rows if row[0] >= 0]]) + "\n")
            with tempfile.TemporaryDirectory() as saved:
                Path(saved, "loader.json").write_text(json.dumps(loader.state_dict()))
                own = ray.train.Checkpoint.from_directory(saved) if rank == 0 else None
                ray.train.report({"step": step}, checkpoint=own)


def run(workers: int, folder: Path, **config: Any) -> str:
    """Run a TorchTrainer, and return the folder of its last checkpoint."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"resume_from": None, "kill_at": 0, "log": str(folder), **config},
        scaling_config=ScalingConfig(num_workers=workers),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name=f"on-{workers}",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    checkpoint = trainer.fit().checkpoint
    assert checkpoint is not None
    return str(checkpoint.path)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_and_another_world_change_no_step(tmp_path: Path) -> None:
    data = write_counted(tmp_path / "mds", random_documents(5, 120))
    options = {"data": data, "cache": str(tmp_path / "cache")}
    first = run(2, tmp_path, stop=5, kill_at=4, **options)
    assert (tmp_path / "killed").exists()
    run(3, tmp_path, stop=STEPS, resume_from=first, **options)
    steps: dict[int, dict[int, list[int]]] = {}
    for log in tmp_path.glob("*.jsonl"):
        for line in log.read_text().splitlines():
            step, rows = json.loads(line)
            for row, ids in rows:
                assert steps.setdefault(step, {}).setdefault(row, ids) == ids
    whole = make_loader(data, batch_size=GLOBAL_BATCH, num_lanes=None)
    for step, batch in enumerate(whole.take(STEPS), 1):
        assert steps[step] == dict(
            zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True)
        )
