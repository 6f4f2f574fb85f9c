"""With every kind of worker, `logging.basicConfig` is enough to see how a loader starts, and a
script that does not call `close()` exits without an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT
from testkit.corpora import random_documents, write_mds
from testkit.servers import free_ports
from testkit.warm_start import stand_in

SCRIPT = """
import logging
import sys
from cloudload import CloudLoader

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    data, tokenizer, cache, workers, method = sys.argv[1:]
    loader = CloudLoader(
        data, tokenizer=tokenizer, seq_len=32, batch_size=2, local=cache,
        num_workers=int(workers), start_method=method,
    )
    batches = iter(loader)
    print(len([next(batches) for _ in range(3)]))
"""
STEPS: list[str | tuple[str, ...]] = [
    "index",
    "tokenizer ready",
    "tokenizer backend",
    "order",
    "first shard",
    "first batch",
]


@pytest.mark.parametrize(
    ("method", "workers"),
    [
        ("fork", 0),
        ("fork", 2),
        ("spawn", 2),
        pytest.param("forkserver", 2, marks=pytest.mark.long),
    ],
)
def test_the_start_is_told_once_with_every_kind_of_worker_and_the_script_ends_quietly(
    tokenizer_folder: Path, tmp_path: Path, method: str, workers: int
) -> None:
    data = write_mds(
        tmp_path / "mds", random_documents(7, 60), shard_bytes=2_000, compression="zstd"
    )
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = [data, tokenizer_folder, tmp_path / "cache", workers, method]
    ended = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr
    # a busy machine may take seconds to start, which is a warning
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("WARNING:cloudload")]
    for line, step in zip(lines, STEPS, strict=True):
        [said] = re.findall(r"^INFO:cloudload\.[\w.]+:(.*)$", line)
        assert said.startswith(step)


RANK_SCRIPT = SCRIPT.replace(
    "import sys\n", "import sys\nimport torch.distributed as dist\n"
).replace("    data,", "    dist.init_process_group('gloo')\n    data,", 1)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_ranks_and_their_workers_tell_of_the_start_and_of_a_slow_backend_once(
    tokenizer_folder: Path, tmp_path: Path, method: str
) -> None:
    data = write_mds(
        tmp_path / "mds", random_documents(7, 60), shard_bytes=2_000, compression="zstd"
    )
    shutil.copytree(tokenizer_folder, tmp_path / "odd")
    tokenizer = tmp_path / "odd" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    content["added_tokens"][0]["lstrip"] = True
    tokenizer.write_text(json.dumps(content))
    script = tmp_path / "train.py"
    script.write_text(RANK_SCRIPT)
    [port] = free_ports(1)
    command = [*stand_in(), "torch.distributed.run", "--nproc-per-node=2"]
    command += [f"--master-port={port}", "--no-python", *stand_in(), "testkit.warm_script"]
    ended = subprocess.run(
        [*command, str(script), data, str(tmp_path / "odd"), str(tmp_path / "cache"), "2", method],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = re.findall(r"^INFO:cloudload\.[\w.]+:(.*)$", ended.stderr, re.MULTILINE)
    begins = [step for step in STEPS if step != "tokenizer backend"]
    # the other rank may be fetching the first shards, or have fetched them already
    other = ("no shard fetched yet", "another process on this node fetched the first shards")
    begins[begins.index("first shard")] = ("first shard", *other)
    for line, begin in zip(said, begins, strict=True):
        assert line.startswith(begin)
    [warning] = re.findall(r"^WARNING:cloudload\.tokenizer:(.*)$", ended.stderr, re.MULTILINE)
    assert (
        "added token '<|endoftext|>' has lstrip. In measurements with the GPT-2 and "
        "Llama 3 tokenizers, hf was about 40 times slower" in warning
    )
