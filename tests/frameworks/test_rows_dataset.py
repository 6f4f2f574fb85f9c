"""With `Rows`, the stock Trainer and DataLoaders lose and repeat no row after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from cloudload import Rows
from testkit.corpora import EOS, byte_tokenizer
from testkit.counted import count
from testkit.loaders import SEQ_LEN, make_loader, rows_of
from testkit.warm_start import start
from tests.frameworks.small import Model

pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS: dict[str, Any] = {
    "tokenizer": byte_tokenizer(),
    "eos": EOS,
    "num_lanes": 12,
    "seq_len": SEQ_LEN,
}


@pytest.fixture(scope="module")
def counted(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the dataset that also has token lengths."""
    copy = tmp_path_factory.mktemp("counted") / "mds"
    shutil.copytree(folder, copy)
    count(copy)
    return str(copy)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stock_trainer_resumes_with_the_rows_that_it_has_not_seen(
    counted: str, tmp_path: Path, num_workers: int
) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    def train(resume: str | bool = False) -> list[list[int]]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=6,
            save_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_num_workers=num_workers,
        )
        model = Model()
        Trainer(model, arguments, train_dataset=Rows(counted, num_rows=24, **SETTINGS)).train(
            resume_from_checkpoint=resume
        )
        return model.trained

    rows = train()
    assert sorted(rows) == sorted(rows_of(make_loader(counted).take(6)))
    assert train(str(tmp_path / "checkpoint-2")) == rows[2 * 4 :]


def test_a_data_loader_with_a_sampler_resumes_at_a_row(counted: str) -> None:
    expected = rows_of(make_loader(counted).take(20))
    rows = Rows(counted, **SETTINGS)
    found = []
    for first, stop, world in ((0, 24, 1), (24, 66, 7), (66, 80, 2)):
        parts = [
            DataLoader(rows, 2, sampler=range(first + rank, stop, world)) for rank in range(world)
        ]
        read = [rows_of(part) for part in parts]
        found += [read[row % world][row // world] for row in range(stop - first)]
    assert found == expected[:80]


TRAINING = """
import json, os, sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from cloudload import Rows
from testkit.corpora import EOS, byte_tokenizer

if __name__ == "__main__":
    folder, saved, log, world, rank = *map(Path, sys.argv[1:4]), *map(int, sys.argv[4:])
    first = json.loads(saved.read_text())["row"] if saved.exists() else 0
    rows = Rows(str(folder), seq_len=16, tokenizer=byte_tokenizer(), eos=EOS, num_lanes=12)
    sampler = range(first + rank, 10**9, world)
    for step, batch in enumerate(DataLoader(rows, 4, sampler=sampler, num_workers=2), start=1):
        with log.open("a") as file:
            for number, ids in enumerate(batch["input_ids"].tolist()):
                row = first + ((step - 1) * 4 + number) * world + rank
                file.write(json.dumps([row, ids]) + "\\n")
        if step % 3 == 0 and rank == 0:
            part = saved.with_suffix(".part")
            part.write_text(json.dumps({"row": first + step * 4 * world}))
            os.replace(part, saved)
        print(step, flush=True)
        if step == 7:
            time.sleep(600)  # until it is killed
"""


def test_a_killed_job_of_data_loaders_continues_on_another_world(
    counted: str, tmp_path: Path
) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "saved.json"
    script.write_text(TRAINING)
    read: dict[int, list[int]] = {}
    kept = 0
    for turn, world in enumerate((2, 3, 1)):
        logs = [tmp_path / f"{turn}-{rank}.jsonl" for rank in range(world)]
        for rank in reversed(range(world)):  # start rank 0, which saves, last
            run_until_step(7, [script, counted, saved, logs[rank], world, rank])
        kept = json.loads(saved.read_text())["row"]
        for log in logs:
            for row, ids in map(json.loads, log.read_text().splitlines()):
                assert read.setdefault(row, ids) == ids
    expected = rows_of(make_loader(counted).take(kept // 4))
    assert [read[row] for row in range(kept)] == expected


def run_until_step(step: int, arguments: list[Any]) -> None:
    """Start a training process, and kill it and its DataLoader's workers when it reaches a step."""
    process = start("testkit.warm_script", [*map(str, arguments)])
    for line in process.stdout:
        if int(line) == step:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
            return
    raise AssertionError(f"the job exited before step {step}: {process.communicate(timeout=60)[1]}")
