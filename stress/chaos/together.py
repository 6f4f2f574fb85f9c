"""Run a program several times at once, with different seeds, and add up its summaries."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

_SEEDS_APART = 1_003


def run_together(module: str, arguments: Sequence[str], args: argparse.Namespace) -> int:
    """Run a module `args.together` times, each with its share of `restarts` and `faults`.

    Prints what each prints, and the sum of their summaries. Returns the exit status.
    """
    number = args.together
    runs = [_Run(module, arguments, args, each) for each in range(number)]
    for run in runs:
        run.thread.join()
    summaries = [run.summary for run in runs]
    print(json.dumps(add(summaries), indent=2))
    return max(run.status for run in runs)


class _Run:
    """A run of the module, whose output a thread prints."""

    def __init__(
        self, module: str, arguments: Sequence[str], args: argparse.Namespace, number: int
    ) -> None:
        own = {
            "--together": 1,
            "--seed": args.seed + number * _SEEDS_APART,
            "--restarts": -(-args.restarts // args.together),
            "--faults": -(-args.faults // args.together),
        }
        more = [str(part) for pair in own.items() for part in pair]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *more], stdout=subprocess.PIPE, text=True
        )
        self._number = number
        self.summary: dict[str, Any] = {"failures": [f"run {number} printed no summary"]}
        self.status = 1
        self.thread = threading.Thread(target=self._print)
        self.thread.start()

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
