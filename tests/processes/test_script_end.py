"""A script that ends without `close()` ends quietly, and its workers with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

SCRIPT = """
import sys
from cloudload import CloudLoader

if __name__ == "__main__":
    data, tokenizer, cache, workers, method = sys.argv[1:]
    loader = CloudLoader(
        data, tokenizer=tokenizer, seq_len=32, batch_size=2, local=cache,
        num_workers=int(workers), start_method=method,
    )
    batches = iter(loader)
    print(len([next(batches) for _ in range(3)]))
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_script_that_does_not_close_its_loader_ends_quietly(
    folder: str, tokenizer_folder: Path, tmp_path: Path, workers: int, method: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = [folder, tokenizer_folder, tmp_path / "cache", workers, method]
    ended = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")
