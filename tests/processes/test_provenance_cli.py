"""`cloudload trace` works in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testkit.traced_runs import TracedRuns


def test_the_command_line_runs_as_a_separate_process(traced: TracedRuns, tmp_path: Path) -> None:
    read = traced.consume()
    path = read.write(tmp_path / "state.json")
    command = [sys.executable, "-m", "cloudload", "trace", str(path), "--steps", "30", "--json"]
    command += ["--local", read.local]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
        span.text for span in read.spans[29]
    ]
