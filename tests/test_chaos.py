"""`scripts/chaos.py` in short: real ranks, killed again and again, on a failing store, read what an
undisturbed run reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).resolve().parents[1] / "scripts" / "chaos.py"


@pytest.mark.timeout(900)
def test_a_job_in_a_hostile_world_loses_repeats_and_changes_nothing() -> None:
    command = [
        sys.executable,
        str(CHAOS),
        "--restarts",
        "16",
        "--faults",
        "200",
        "--documents",
        "1500",
        "--jobs",
        "8",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    summary = json.loads(ended.stdout[ended.stdout.index("\n{\n") :])
    assert summary["failures"] == []
    assert summary["campaigns"] >= 2
    assert summary["restarts"] >= 10
    assert summary["faults"] >= 200
    assert summary["rows"] > 0
