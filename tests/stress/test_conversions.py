"""In a short run of `stress.conversions`, conversions that are killed and restarted write the same
objects, and every document of their source."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testkit import ROOT


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_conversions_that_are_killed_end_in_the_same_objects() -> None:
    modes = ["2 processes", "array", "last first", "twice"]
    command = [sys.executable, "-m", "stress.conversions", "--kills", "8", "--modes", *modes]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1150, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    summary = json.loads(ended.stdout[ended.stdout.index("\n{\n") :])
    assert summary["failures"] == []
    assert summary["kills"] >= 8
    assert sum(summary["faults"].values()) > 50


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_conversions_of_every_format_that_are_killed_keep_every_document() -> None:
    command = [sys.executable, "-m", "stress.conversions.forms", "--kills", "60"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1150, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    summary = json.loads(ended.stdout[ended.stdout.index("{\n") :])
    assert summary["failures"] == []
    assert summary["kills"] >= 60
