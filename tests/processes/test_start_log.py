"""A script that only calls `logging.basicConfig` sees how its loader starts, with every kind of
worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.corpora import random_documents, write_mds

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
    with loader:
        list(loader.take(3))
"""
STEPS = ["index", "tokenizer ready", "tokenizer backend", "order", "first shard", "first batch"]


@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 0), ("fork", 2), ("spawn", 2), ("forkserver", 2)]
)
def test_the_start_is_told_once_with_every_kind_of_worker(
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
        check=True,
    )
    said = re.findall(r"^INFO:cloudload\.[\w.]+:(.*)$", ended.stderr, re.MULTILINE)
    for line, step in zip(said, STEPS, strict=True):
        assert line.startswith(step)
