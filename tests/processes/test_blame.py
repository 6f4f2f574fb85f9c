"""Losses of a real training run reveal one bad document among thousands."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.losses import read_losses
from testkit import ROOT
from testkit.corpora import random_documents, write_mds
from testkit.servers import free_ports
from testkit.warm_start import stand_in

TOKENIZER = str(ROOT / "examples" / "tokenizer")
SEQ_LEN = 128
SAVED, KILLED, STEPS = 10, 13, 30


def write_corpus(folder: Path, number: int, global_batch: int) -> tuple[str, int]:
    """Write documents with a small vocabulary, except one of random characters that step 25 reads.

    Returns the dataset's folder and the sample of that document.
    """
    documents = random_documents(3, number, max_words=12)
    ids = [f"doc-{number}" for number in range(len(documents))]
    extra = {"id": ("str", ids)}
    data = write_mds(folder / "draft", documents, shard_bytes=100_000, extra=extra)
    options: dict[str, Any] = {"tokenizer": TOKENIZER, "seq_len": SEQ_LEN, "num_workers": 0}
    with CloudLoader(
        data, batch_size=global_batch, local=folder / "draft-cache", **options
    ) as loader:
        loader.seek(24 * global_batch)
        bad = int(next(iter(loader)).spans[40, 3])
    letters = random.Random(4)
    documents[bad] = "".join(chr(letters.randint(0x21, 0x2FF)) for _ in range(30))
    return write_mds(folder / "data", documents, shard_bytes=100_000, extra=extra), bad


def train(folder: Path, data: str, ranks: int, *arguments: str) -> str:
    """Run the example that uses plain torch, and return its output."""
    (folder / str(ranks)).mkdir()
    options = {"log": str(folder / str(ranks)), "kill_at": None, "model": "tiny_gpt:GPT"}
    command = [
        *[*stand_in(), "torch.distributed.run", f"--nproc-per-node={ranks}"],
        *[f"--master-port={free_ports(1)[0]}", "--no-python"],
        *[*stand_in(), "tests.frameworks.record", json.dumps(options)],
        *[str(ROOT / "examples/train_torch.py"), data, *arguments],
        *[
            f"--out={folder / 'out'}",
            f"--losses={folder / 'losses'}",
            f"--cache={folder / 'cache'}",
        ],
        *[f"--seq-len={SEQ_LEN}", f"--save-every={SAVED}"],
        *["--width=32", "--depth=1", "--lr=0.02", "--workers=1"],
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    return ended.stdout


@pytest.mark.parametrize(
    ("documents", "global_batch", "ranks"),
    [(2_000, 12, (1, 2)), pytest.param(10_000, 48, (2, 3), marks=pytest.mark.long)],
)
def test_a_bad_document_is_found_in_a_run_that_was_resumed_on_another_world(
    tmp_path: Path, cli: Any, documents: int, global_batch: int, ranks: tuple[int, int]
) -> None:
    data, bad = write_corpus(tmp_path, documents, global_batch)
    size = f"--global-batch={global_batch}"
    train(tmp_path, data, ranks[0], f"--steps={KILLED}", size)
    shutil.rmtree(tmp_path / f"out/step-{KILLED:07}")
    printed = train(tmp_path, data, ranks[1], f"--steps={STEPS}", size, "--resume")
    losses = read_losses(tmp_path / "losses")
    assert losses.steps == range(1, STEPS + 1)
    rows = losses.records.table[:, 1]
    assert set(rows.tolist()) == set(range(STEPS * global_batch))
    [(name, found)] = losses.of_steps(range(21, 31)).means().items()
    assert str({name: f"{found.mean:.3f}"}) in printed.splitlines()
    arguments = ["blame", str(tmp_path / "losses"), "--local", str(tmp_path / "cache"), "--quiet"]
    steps = ["--steps", f"{SAVED + 1}:{STEPS + 1}"]
    [first, *_] = json.loads(cli(*arguments, *steps, "--json").out)["documents"]
    assert (first["sample"], first["id"]) == (bad, f"doc-{bad}")
    shown = cli(*arguments, *steps, "--top", "1").out
    assert f"id doc-{bad}  sample {bad}  epoch 0" in shown
    assert f"  {first['shard']}\n" in shown
    assert (
        "no document has a score of 1e+09 or more"
        in cli(
            *arguments, "--steps", f"{first['step']}", "--no-text", "--threshold=1e9", status=1
        ).out
    )
