"""The fault table, a row or two of each section: what a user sees of a fault."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

SWEPT = r"^0 / 0 / (0|\d+ \(0 after the next start\))$"
# section, fault, and the rows expected: a pattern for each cell after the name of the fault
ROWS = [
    ("store", "FIFO", [("file", "", "is a pipe or a device, not a regular file")]),
    (
        "store",
        "404",
        [
            ("S3", "", "StoreError: cannot read s3://cloudload/nothing"),
            ("GCS", "", "StoreError: cannot read gs://cloudload/nothing"),
        ],
    ),
    ("cache", "cached shard cut short", [("", "every row, as of sound data")]),
    ("data", "index `null`", [("", "DatasetError")]),
    ("state", "newer version", [("", "StreamChangedError")]),
    (
        "processes",
        "SIGKILL of a worker",
        [
            ("answers", "", "status 1", SWEPT, "WorkerError"),
            ("silent", "", "status 1", SWEPT, "WorkerError"),
        ],
    ),
]


@pytest.mark.parametrize(("section", "fault", "expected"), ROWS)
def test_a_fault_shows_as_its_own_row(
    section: str, fault: str, expected: list[tuple[str, ...]]
) -> None:
    command = [sys.executable, "-m", "stress.fault_table", "--only", section, fault]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == f"## {section.capitalize()}"
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {fault} |")]
    assert len(rows) == len(expected), done.stdout
    for (_, *cells), patterns in zip(rows, expected, strict=True):
        for cell, pattern in zip(cells, patterns, strict=True):
            assert re.search(pattern, cell), done.stdout
