"""In every framework, a run that is killed and resumed trains on the rows of an uninterrupted run.

The tests run the scripts in `examples/` with real processes and a real S3 server.
`frameworks/record.py` records the rows and kills the processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload import CloudLoader, convert_to_mds
from testkit import ROOT
from testkit.corpora import random_documents, write_mds
from testkit.servers import BUCKET, S3Server, free_ports
from testkit.warm_start import stand_in

TOKENIZER = ROOT / "examples" / "tokenizer"
GLOBAL_BATCH, SEQ_LEN, STEPS, SAVE_EVERY = 8, 32, 10, 4

Steps = list[list[str]]


@dataclass(frozen=True)
class Framework:
    """An example script of a framework, and the settings to run it."""

    example: str
    environment: str = "dev"
    """An environment named in `scripts/test-frameworks`, or "dev" for that of the tests."""
    variables: tuple[tuple[str, str], ...] = ()
    num_ahead: int = 0
    """Number of batches that the framework fetches ahead of training."""
    model: str = "tiny_gpt:GPT"
    """The class whose `forward` receives the rows."""
    num_unseen: int = 0
    """Number of tokens at a row's end that the model gets only as labels."""

    def python(self) -> str:
        """The path of the environment's Python interpreter."""
        if self.environment == "dev":
            return sys.executable
        python = ROOT / ".frameworks" / self.environment / "bin" / "python"
        if not python.exists():
            pytest.skip(
                f"the environment {self.environment} does not exist. Build it with "
                "make test-frameworks"
            )
        return str(python)

    def command(self, module: str) -> list[str]:
        """Return a command that runs a module, without the module's arguments."""
        own = [self.python(), "-m", module]
        return [*stand_in(), module] if self.environment == "dev" else own

    def hashes(self, steps: list[torch.Tensor]) -> Steps:
        """Hash the part of each step's rows that the model receives as input."""
        seen = SEQ_LEN - self.num_unseen
        return [
            sorted(hashlib.sha256(row[:seen].numpy().tobytes()).hexdigest()[:16] for row in rows)
            for rows in steps
        ]


FRAMEWORKS = {
    "torch DDP": Framework("train_torch.py"),
    "torch FSDP2": Framework("train_torch.py", variables=(("FSDP", "1"),)),
    "Composer": Framework(
        "train_composer.py", "composer", (("NODE_RANK", "0"),)
    ),  # Composer's own launcher sets this
    "HF Trainer 4": Framework("train_hf.py"),
    "HF Trainer 5": Framework("train_hf.py", "transformers5"),
    "TRL, transformers 4": Framework("train_trl.py", model="transformers:LlamaModel"),
    "TRL, transformers 5": Framework(
        "train_trl.py", "transformers5", model="transformers:LlamaModel"
    ),
    "accelerate": Framework("train_accelerate.py"),
    "Lightning": Framework("train_lightning.py", num_ahead=1),
    "torchtitan": Framework(
        "train_torchtitan.py",
        "torchtitan",
        model="torchtitan.models.common.decoder:Decoder",
        num_unseen=1,
    ),
}


@dataclass(frozen=True)
class Way:
    """A run in two parts. Each pair has values for the killed part and for the resumed part."""

    ranks: tuple[int, int] = (1, 1)
    workers: tuple[int, int] = (1, 1)
    accumulate: tuple[int, int] = (1, 1)
    epoch_batches: int | None = None
    killed_in_step: int = 7
    resumed_after: int = SAVE_EVERY
    steps: int = STEPS
    float64: bool = False


WAYS = {
    "before the first batch": Way(killed_in_step=1, resumed_after=0),
    "mid-epoch": Way(epoch_batches=6),
    "at an epoch's end": Way(epoch_batches=SAVE_EVERY),
    "endless": Way(),
    "mid accumulation": Way(accumulate=(2, 2)),
    "2 to 1": Way(ranks=(2, 1)),
    "2 to 4": Way(ranks=(2, 4), accumulate=(2, 1)),
    "other workers": Way(workers=(2, 0)),
}


# the short tests run only these combinations; `make test-frameworks` runs all
SHORT = {
    ("torch DDP", "2 to 4"),
    ("HF Trainer 4", "at an epoch's end"),
    ("TRL, transformers 4", "mid accumulation"),
    ("Lightning", "2 to 1"),
}
CELLS = [
    pytest.param(name, way, marks=() if (name, way) in SHORT else pytest.mark.long)
    for name, way in product(FRAMEWORKS, WAYS)
]


@pytest.fixture(scope="module")
def data(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("documents")
    with (folder / "part.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in random_documents(3, 400))
    assert s3_server.endpoint
    url = f"s3://{BUCKET}/frameworks-{uuid.uuid4().hex}"
    convert_to_mds(
        [str(folder / "part.jsonl")], url, shard_bytes=20_000, processes=1, progress=False
    )
    return url


@pytest.fixture(scope="module")
def expected(data: str, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """The rows of each step of an uninterrupted run, read from a loader without a framework."""
    cache = str(tmp_path_factory.mktemp("cache"))
    loader = CloudLoader(
        data,
        tokenizer=TOKENIZER,
        seq_len=SEQ_LEN,
        batch_size=GLOBAL_BATCH,
        num_workers=0,
        local=cache,
    )
    return [batch["input_ids"] for batch in loader.take(STEPS)]


@pytest.mark.long
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_uninterrupted_run_trains_on_the_loaders_rows(
    name: str, data: str, expected: list[torch.Tensor], tmp_path: Path
) -> None:
    job = Job(FRAMEWORKS[name], data, tmp_path)
    job.run("whole", Way(), 0)
    assert job.trained("whole", GLOBAL_BATCH) == FRAMEWORKS[name].hashes(expected)


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_a_run_killed_and_resumed_trains_on_the_same_rows(
    name: str, way: str, data: str, expected: list[torch.Tensor], tmp_path: Path
) -> None:
    framework, cut = FRAMEWORKS[name], WAYS[way]
    if name in ("HF Trainer 4", "TRL, transformers 4") and cut.ranks[1] > 1:
        pytest.skip(
            "transformers 4 cannot load an optimizer on several ranks without a GPU. Version 5 "
            "runs this test"
        )
    job = Job(framework, data, tmp_path)
    kill_at = cut.killed_in_step * cut.accumulate[0]
    job.run("killed", cut, 0, kill_at=kill_at)
    job.run("resumed", cut, 1)
    killed, resumed = job.trained("killed", GLOBAL_BATCH), job.trained("resumed", GLOBAL_BATCH)
    whole = framework.hashes(expected)
    assert killed == whole[: cut.killed_in_step - 1]
    assert resumed == whole[cut.resumed_after :], (tmp_path / "resumed.txt").read_text()[-6000:]
    # for gradient accumulation, Composer splits one batch; the other frameworks pull several
    num_trained = len(resumed) * (1 if name == "Composer" else cut.accumulate[1])
    pulled = job.pulled("resumed")
    assert all(num_trained <= each <= num_trained + framework.num_ahead for each in pulled), pulled


@pytest.mark.long
@pytest.mark.parametrize("name", ["torch DDP", "torch FSDP2", "Composer"])
def test_losses_are_those_of_an_uninterrupted_run(name: str, data: str, tmp_path: Path) -> None:
    """A float64 run is killed on 2 ranks in step 23, and resumed on 4 ranks after step 20."""
    job = Job(FRAMEWORKS[name], data, tmp_path)
    job.run("whole", Way(steps=40, float64=True), 0)
    shutil.rmtree(tmp_path / "out")
    cut = Way(ranks=(2, 4), steps=40, float64=True)
    job.run("killed", cut, 0, kill_at=23)
    job.run("resumed", cut, 1)
    whole, killed, resumed = (job.losses(run) for run in ("whole", "killed", "resumed"))
    assert (len(whole), len(killed), len(resumed)) == (40, 22, 20)
    differences = [
        abs(one - other) for one, other in zip(whole, killed[:20] + resumed, strict=True)
    ]
    print(
        f"{name}: losses {whole[0]:.3f} to {whole[-1]:.3f}, largest difference "
        f"{max(differences):.1e}"
    )
    assert max(differences) <= 1e-9
    assert whole[-1] < whole[0] - 0.5


def test_torchtitans_trainers_old_and_new_get_what_they_ask_for(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "data", random_documents(3, 100))
    command = [
        FRAMEWORKS["torchtitan"].python(),
        str(ROOT / "tests" / "frameworks" / "torchtitan_adapter.py"),
    ]
    command += [data, str(TOKENIZER), str(tmp_path / "cache")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-6000:]


class Job:
    """A helper that runs an example in its own folder and reads the records of each run."""

    def __init__(self, framework: Framework, data: str, folder: Path) -> None:
        self.framework, self.data, self.folder = framework, data, folder

    def run(self, run: str, way: Way, part: int, kill_at: int | None = None) -> None:
        """Run the first (0) or second (1) part of a run. The output is written to `<run>.txt`."""
        (self.folder / run).mkdir()
        options = {"log": str(self.folder / run), "kill_at": kill_at, "model": self.framework.model}
        command = [
            *self.framework.command("torch.distributed.run"),
            f"--nproc-per-node={way.ranks[part]}",
            f"--master-port={free_ports(1)[0]}",
            "--no-python",
            *self.framework.command("tests.frameworks.record"),
            json.dumps(options),
            str(ROOT / "examples" / self.framework.example),
            self.data,
            *self.arguments(way, part),
        ]
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with (self.folder / f"{run}.txt").open("w") as output:
            ended = subprocess.run(
                command,
                env={**variables, **dict(self.framework.variables)},
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=280,
                check=False,
            )
        # on CPUs, some frameworks fail after training, so a failure is only printed
        if kill_at is None and ended.returncode:
            print(f"{run} exited with status {ended.returncode}")
            print((self.folder / f"{run}.txt").read_text()[-6000:])

    def arguments(self, way: Way, part: int) -> list[str]:
        """The command-line arguments of the example for a part of a run."""
        numbers = {
            "steps": way.steps,
            "save-every": SAVE_EVERY,
            "global-batch": GLOBAL_BATCH,
            "accumulate": way.accumulate[part],
            "seq-len": SEQ_LEN - self.framework.num_unseen,
            "workers": way.workers[part],
            "width": 32,
            "depth": 1,
        }
        arguments = [f"--{name}={value}" for name, value in numbers.items()]
        if way.epoch_batches is not None:
            arguments.append(f"--epoch-batches={way.epoch_batches}")
        if way.float64:
            arguments.append("--float64")
        if part:
            arguments.append("--resume")
        return [*arguments, f"--out={self.folder / 'out'}", f"--cache={self.folder / 'cache'}"]

    def lines(self, run: str) -> list[list[dict[str, Any]]]:
        """Read the records of each rank, one dict per line of its log."""
        logs = sorted((self.folder / run).glob("*.jsonl"))
        assert logs, (self.folder / f"{run}.txt").read_text()[-6000:]
        return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]

    def trained(self, run: str, rows_a_step: int) -> Steps:
        """Return the sorted row hashes of each step, over all ranks."""
        ranks = [
            [row for line in lines for row in line.get("trained", [])] for lines in self.lines(run)
        ]
        own = rows_a_step // len(ranks)
        num_steps = max(len(rows) for rows in ranks) // own
        return [
            sorted(row for rows in ranks for row in rows[step * own : (step + 1) * own])
            for step in range(num_steps)
        ]

    def pulled(self, run: str) -> list[int]:
        """Count the batches that each rank fetched."""
        return [sum("pulled" in line for line in lines) for lines in self.lines(run)]

    def losses(self, run: str) -> list[float]:
        """Return the mean loss of each step, over all ranks."""
        ranks = [[line["loss"] for line in lines if "loss" in line] for lines in self.lines(run)]
        return [sum(losses) / len(ranks) for losses in zip(*ranks, strict=True)]
