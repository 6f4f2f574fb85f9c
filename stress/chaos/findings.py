"""Counts and failures of the campaigns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stress.campaign import Failures


@dataclass
class Findings(Failures):
    """Counts over all campaigns, and descriptions of failures."""

    jobs: int = 0
    rows: int = 0
    replayed: int = 0
    slowest_end_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

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
