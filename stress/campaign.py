"""The options, the folder and the failures of a stress campaign."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
class Failures:
    """The descriptions of a campaign's failures."""

    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Record and print a failure."""
        self.failures.append(what)
        print(f"FAILED: {what}", flush=True)


def run_in_folder(name: str, run: Callable[[Path], dict[str, Any]]) -> int:
    """Run a campaign in a temporary folder, print its summary, and return the exit status."""
    # ignore cleanup errors, because processes that are about to exit may still write to the folder
    with tempfile.TemporaryDirectory(
        prefix=f"cloudload-{name}-", ignore_cleanup_errors=True
    ) as folder:
        summary = run(Path(folder))
    print(json.dumps(summary, indent=2))
    return 1 if summary["failures"] else 0
