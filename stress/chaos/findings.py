"""Counts and failures of the campaigns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """Counts over all campaigns, and descriptions of failures."""

    jobs: int = 0
    rows: int = 0
    replayed: int = 0
    slowest_end_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Record and print a failure."""
        self.failures.append(what)
        print(f"FAILED: {what}", flush=True)

    def summary(self) -> dict[str, Any]:
        """The counts and failures as JSON values."""
        return {
            "restarts": self.jobs,
            "faults": self.faults.total(),
            "rows": self.rows,
            "rows read again": self.replayed,
            "seconds from an end to the last process's": round(self.slowest_end_s, 1),
            "done": dict(self.done),
            "injected": dict(self.faults),
            "errors": dict(self.errors),
            "failures": self.failures,
        }
