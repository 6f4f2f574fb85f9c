"""Collect the counts and failures of the campaigns, and summarize them."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.campaign import Failures
from testkit import ROOT


@dataclass
class Findings(Failures):
    """Counts over all campaigns, and descriptions of failures."""

    jobs: int = 0
    rows: int = 0
    replayed: int = 0
    slowest_end_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Maximum seconds from a job's `end` signal to the exit of its last process, by `end`."""
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    drawn: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """The number of jobs that had each value of an option, by the option's name."""

    def summary(self) -> dict[str, Any]:
        """Return the counts and failures as JSON values."""
        return {
            "commit": find_commit(),
            "restarts": self.jobs,
            "faults": self.faults.total(),
            "rows": self.rows,
            "rows read again": self.replayed,
            "maximum seconds from the end signal to the last exit": dict(self.slowest_end_s),
            "ends": dict(self.ends),
            "stops": dict(self.stops),
            "disks": dict(self.disks),
            "injected": dict(self.faults),
            "errors": dict(self.errors),
            "jobs": {name: dict(counts) for name, counts in self.drawn.items()},
            "failures": self.failures,
        }


def find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if files differ from the commit."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def write_summary(path: str, summary: dict[str, Any]) -> None:
    """Replace the file at `path` with a summary, atomically."""
    new = Path(f"{path}.new")
    new.write_text(json.dumps(summary, indent=2))
    new.replace(path)
