"""Run several processes of a program at once, with different seeds, and add up their summaries."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stress.chaos.findings import write_summary

_SEEDS_APART, _SUMMARY_EVERY_S = 1_003, 10.0


def run_together(module: str, arguments: Sequence[str], args: argparse.Namespace) -> int:
    """Run a module `args.together` times, each with its share of `restarts` and `faults`.

    Prints the output of every run, and at the end the sum of their summaries. If `args.summary` is
    given, also writes the sum so far to that file every 10 s. Returns the highest exit status.
    """
    number = args.together
    runs = [_Run(module, arguments, args, each) for each in range(number)]
    for run in runs:
        while run.thread.is_alive():
            run.thread.join(_SUMMARY_EVERY_S)
            if args.summary:
                write_summary(args.summary, add([each.read_summary() for each in runs]))
    summaries = [run.summary for run in runs]
    print(json.dumps(add(summaries), indent=2))
    return max(run.status for run in runs)


class _Run:
    """A run of the module in a process whose output a thread prints."""

    def __init__(
        self, module: str, arguments: Sequence[str], args: argparse.Namespace, number: int
    ) -> None:
        own: dict[str, Any] = {
            "--together": 1,
            "--seed": args.seed + number * _SEEDS_APART,
            "--restarts": -(-args.restarts // args.together),
            "--faults": -(-args.faults // args.together),
        }
        self._file = Path(f"{args.summary}.{number}") if args.summary else None
        if self._file is not None:
            own["--summary"] = self._file
            self._file.unlink(missing_ok=True)
        more = [str(part) for pair in own.items() for part in pair]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *more], stdout=subprocess.PIPE, text=True
        )
        self._number = number
        self.summary: dict[str, Any] = {
            "failures": [f"run {number} exited without printing a summary"]
        }
        self.status = 1
        self.thread = threading.Thread(target=self._print)
        self.thread.start()

    def read_summary(self) -> dict[str, Any]:
        """Return the summary that the run last wrote to its file, or {} if there is none."""
        if self._file is not None and self._file.exists():
            found: dict[str, Any] = json.loads(self._file.read_text())
            return found
        return {}

    def _print(self) -> None:
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "{\n":
                text = line
            print(f"[{self._number}] {line}", end="", flush=True)
        self.status = self._process.wait()
        if text.startswith("{\n"):
            self.summary = json.loads(text)


def add(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge summaries: add numbers, join lists, and keep the maximum of seconds and minutes."""
    total: dict[str, Any] = {}
    for summary in summaries:
        for name, value in summary.items():
            if name not in total:
                total[name] = value
            elif isinstance(value, dict):
                total[name] = _add_up(name, total[name], value)
            elif isinstance(value, str):
                total[name] = value
            else:
                total[name] = _add_up(name, {"": total[name]}, {"": value})[""]
    return total


def _add_up(name: str, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    if any(isinstance(value, dict) for value in (*first.values(), *second.values())):
        return add([first, second])
    is_most = "seconds" in name or "minutes" in name
    joined = dict(first)
    for key, value in second.items():
        joined[key] = (
            value
            if key not in joined
            else max(joined[key], value)
            if is_most
            else joined[key] + value
        )
    return joined
