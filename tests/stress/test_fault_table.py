"""The fault table reports what a user sees of a fault. One or two faults per section are tested."""

from __future__ import annotations

import re
import subprocess

import pytest

from testkit import ROOT
from testkit.warm_start import stand_in

SWEPT = r"^0 / 0 / (0|\d+ \(0 after the next start\))$"
# for one or two faults per section, the rows: a pattern for each cell after the fault's name
Rows = list[tuple[str, ...]]
SECTIONS: dict[str, dict[str, Rows]] = {
    "store": {
        "FIFO": [("file", "", "is a pipe, a socket, or a device, not a regular file")],
        "404": [
            ("S3", "", "StoreError: cannot read s3://cloudload/nothing"),
            ("GCS", "", "StoreError: cannot read gs://cloudload/nothing"),
        ],
    },
    "cache": {"cached shard cut short": [("", "every row, as from undamaged data")]},
    "data": {"index `null`": [("", "DatasetError")]},
    "state": {"newer version": [("", "StreamChangedError")]},
    "processes": {
        "SIGKILL of a worker": [
            ("answers", "", "status 1", SWEPT, "WorkerError"),
            ("silent", "", "status 1", SWEPT, "WorkerError"),
        ],
    },
}


@pytest.mark.long
@pytest.mark.parametrize("section", SECTIONS)
def test_a_fault_shows_as_its_own_row(section: str) -> None:
    faults = SECTIONS[section]
    command = [*stand_in(), "stress.fault_table.__main__", "--only", section, *faults]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == f"## {section.capitalize()}"
    for fault, expected in faults.items():
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {fault} |")]
        assert len(rows) == len(expected), done.stdout
        for (_, *cells), patterns in zip(rows, expected, strict=True):
            for cell, pattern in zip(cells, patterns, strict=True):
                assert re.search(pattern, cell), done.stdout
