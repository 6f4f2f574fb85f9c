"""Format a benchmark's figures as spreads and Markdown tables, and name their conditions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import ROOT


class Spread(NamedTuple):
    """A median with the 10th and 90th percentiles, or the extremes of fewer than ten values."""

    median: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of one or more values."""
    if len(values) < 10:
        return Spread(statistics.median(values), min(values), max(values))
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), deciles[0], deciles[-1])


Cell = str | int | float | list[float] | None
Row = dict[str, Cell]
"""A row of a table, which maps column names to cells. A list is shown as its spread."""


def table(rows: Sequence[Row], forms: Mapping[str, str] | None = None) -> str:
    """Format rows as a Markdown table. `forms` maps some columns to their number formats."""
    forms = forms or {}
    columns = list(rows[0])
    rules = ["---" if isinstance(rows[0][column], str) else "---:" for column in columns]
    cells = [[_show(row[column], forms.get(column)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, rules, *cells])


def _show(cell: Cell, form: str | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, list):
        spread = spread_of(cell)
        return format(spread, form or _form_of(spread.median))
    return format(cell, form or _form_of(cell))


def _form_of(number: float) -> str:
    return ",.0f" if isinstance(number, int) or abs(number) >= 100 else ".3g"


def print_tables(
    tables: Iterable[tuple[str, list[Row]]],
    *,
    as_json: bool,
    forms: Mapping[str, str] | None = None,
) -> None:
    """Print each table as Markdown as soon as it is measured, or all tables as a JSON object."""
    found = {}
    for title, rows in tables:
        found[title] = rows
        if not as_json:
            print(f"\n**{title}**\n\n{table(rows, forms)}", flush=True)
    if as_json:
        print(json.dumps(found))


# ---------------------------------------------------------------- facts about the measurement


def _hardware() -> str:
    """The processor, available cores, memory and kernel of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{[*models, platform.machine()][0]}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GB of memory, Linux {platform.release().split('-')[0]}"
    )


def _commit() -> str:
    """The measured commit, with a note if the package `cloudload` has uncommitted changes."""
    head, changes = (
        subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        ).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "cloudload"])
    )
    return f"{head or 'unknown'}{' with uncommitted changes' if changes else ''}"


def facts() -> dict[str, str]:
    """The date, command, commit, and hardware of a report, by name."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": _shown_command(),
        "cloudload": f"{metadata.version('cloudload')}, commit {_commit()}",
        "hardware": _hardware(),
    }


def _shown_command() -> str:
    """The command line as Markdown, with only the last component of each path."""
    words = [
        Path(word).name.split(".")[0] if word.startswith(("/", "..")) else word
        for word in sys.argv[1:]
    ]
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else "benchmarks"
    return f"`{shlex.join(['python', '-m', module, *words])}`"
