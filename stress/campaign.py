"""The options, the folder and the report of a stress campaign."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit import ROOT


def make_parser(
    text: str | None, options: Mapping[str, tuple[Any, str]]
) -> argparse.ArgumentParser:
    """Make a parser with a help text and options. `options` maps names to (default, help)."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, meaning) in options.items():
        shown = f"{meaning} (default: {default})"
        parser.add_argument(name, type=type(default), default=default, help=shown)
    return parser


@dataclass
class Report:
    """What a campaign did, and its failures."""

    numbers: Counter[str] = field(default_factory=Counter)
    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Groups of numbers, such as the kills of each kind of process."""
    max_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The longest duration of each kind of event."""
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def fail(self, what: str) -> None:
        """Record and print a failure."""
        self.failures.append(what)
        print(f"FAILED: {what}", flush=True)

    @property
    def minutes(self) -> float:
        """The minutes since the campaign began."""
        return (time.monotonic() - self.began) / 60

    def summary(self) -> dict[str, Any]:
        """Return everything as JSON values, with the commit of this checkout."""
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return {
            "commit": found.stdout.strip() or "unknown",
            **self.numbers,
            **self.counts,
            "maximum seconds": self.max_seconds,
            "minutes": round(self.minutes, 1),
            "failures": self.failures,
        }


def run_in_folder(name: str, run: Callable[[Path], Report]) -> int:
    """Run a campaign in a temporary folder, print its summary, and return the exit status."""
    # ignore cleanup errors, because processes that are about to exit may still write to the folder
    with tempfile.TemporaryDirectory(
        prefix=f"cloudload-{name}-", ignore_cleanup_errors=True
    ) as folder:
        report = run(Path(folder))
    print(json.dumps(report.summary(), indent=2))
    return 1 if report.failures else 0
