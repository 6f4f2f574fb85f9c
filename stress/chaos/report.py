"""Collect the counts and failures of a campaign."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from stress.campaign import Failures
from testkit import ROOT


@dataclass
class Report(Failures):
    """Counts over all training runs, and descriptions of failures."""

    runs: int = 0
    jobs: int = 0
    rows: int = 0
    rows_again: int = 0
    max_exit_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Maximum seconds from a job's `end` signal to the exit of its last process, by `end`."""
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    options: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """The number of jobs that had each value of an option, by the option's name."""

    def summary(self, minutes: float) -> dict[str, Any]:
        """Return the counts and failures as JSON values."""
        return {
            "commit": _find_commit(),
            "runs": self.runs,
            "restarts": self.jobs,
            "faults": self.faults.total(),
            "rows": self.rows,
            "rows read again": self.rows_again,
            "maximum seconds from the end signal to the last exit": self.max_exit_s,
            "ends": self.ends,
            "pauses": self.pauses,
            "disks": self.disks,
            "injected": self.faults,
            "errors": self.errors,
            "jobs": self.options,
            "failures": self.failures,
            "minutes": round(minutes, 1),
        }


def _find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if files differ from the commit."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
