"""`cloudload trace` works in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.traced_runs import MakeLoader, consume, loaders_of, write_streams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("provenance"))


@pytest.fixture
def make_loader(folder: Path, tokenizer_folder: Path) -> MakeLoader:
    return loaders_of(folder, tokenizer_folder)


def test_the_command_line_runs_as_a_separate_process(
    make_loader: MakeLoader, tmp_path: Path
) -> None:
    with make_loader() as loader:
        batches, state = consume(loader)
        spans = loader.trace(batches[29])
    (tmp_path / "state.json").write_text(json.dumps(state))
    command = [
        sys.executable,
        "-m",
        "cloudload",
        "trace",
        str(tmp_path / "state.json"),
        "--steps",
        "30",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--local", str(loader.worker_plan().cache_root)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
        span.text for span in spans
    ]
