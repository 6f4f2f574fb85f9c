"""Write the report of a race, which is Markdown tables, results.json, and a bar chart."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.figures import Spread, spread_of
from benchmarks.harness import ROOT
from benchmarks.peers.racing import Turn
from benchmarks.throughput.catalogue import BARE, CEILING, OURS, PEER, Entry, Race

COLOURS = {BARE: "#9a9a9a", OURS: "#1f6feb", PEER: "#e0823d", CEILING: "#c9d7c0"}
Measure = Callable[[Turn], float]


@dataclass
class Result:
    """The turns of a side in a race, and the reason if it failed."""

    entry: Entry
    turns: list[Turn] = field(default_factory=list)
    """The side's turns, one per round until the side failed."""
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""


@dataclass
class Section:
    """A race with one tokenizer, as a part of the report."""

    race: Race
    tokenizer: str
    results: list[Result]

    @property
    def title(self) -> str:
        return f"{self.race.title}: {self.tokenizer}"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return summarize(self.race, self.results)

    def table(self) -> str:
        """Format the race as a Markdown table."""
        lines = [
            "| side | million tokens/s | relative | million tokens per CPU s | relative | training "
            "process, CPU ms per batch |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for row in self.rows:
            if row["failure"]:
                lines.append(f"| {row['name']} | failed: {row['failure']} | | | | |")
                continue
            cells = [
                f"{_millions(row['wall']):.2f}",
                _form(row["wall ratio"]),
                f"{_millions(row['cpu']):.2f}",
                _form(row["cpu ratio"]),
                _form(row["main"]),
            ]
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", f"Ratios are relative to {self.race.baseline}."])


def by_wall(turn: Turn) -> float:
    """Return the tokens per second of wall time."""
    return turn.tokens / turn.wall


def by_cpu(turn: Turn) -> float:
    """Return the tokens per CPU second of the side's process and its workers."""
    return turn.tokens / turn.cpu


def main_ms(turn: Turn) -> float:
    """Return the CPU milliseconds of the training process per batch."""
    return 1e3 * turn.main_cpu / turn.batches


def summarize(race: Race, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return each side's speeds as spreads, with their ratios to the baseline in the same round.

    The row of a side that failed has only its name, kind and failure.
    """
    baseline = next(
        (result for result in results if result.entry.name == race.baseline and not result.failure),
        None,
    )
    rows = []
    for result in results:
        row: dict[str, Any] = {
            "name": result.entry.name,
            "kind": result.entry.kind,
            "failure": result.failure,
        }
        if not result.failure:
            turns = result.turns
            row |= {
                "wall": spread_of([*map(by_wall, turns)]),
                "cpu": spread_of([*map(by_cpu, turns)]),
            }
            row |= {
                "main": spread_of([*map(main_ms, turns)]) if result.entry.kind != BARE else None
            }
            for name, measure in {"wall ratio": by_wall, "cpu ratio": by_cpu}.items():
                row[name] = baseline and spread_of([*map(_ratio(measure), turns, baseline.turns)])
        rows.append(row)
    return rows


def _ratio(measure: Measure) -> Callable[[Turn, Turn], float]:
    return lambda turn, other: measure(turn) / measure(other)


# ---------------------------------------------------------------- files


def _form(ratio: Spread | None) -> str:
    return format(ratio, ".2f") if ratio else "-"


def _millions(spread: Spread) -> Spread:
    return Spread(*(value / 1e6 for value in spread))


def set_ups(races: Sequence[Race]) -> str:
    """Describe the setup of each side with the docstring of the side's script."""
    scripts = dict.fromkeys(entry.script for race in races for entry in race.entries)
    parts = []
    for script in scripts:
        code = (ROOT / "benchmarks" / "peers" / f"{script}.py").read_text()
        parts.append(f"**`{script}.py`**: {ast.get_docstring(ast.parse(code)) or ''}")
    return "\n\n".join(parts)


def write_markdown(path: Path, facts: dict[str, str], sections: Sequence[Section]) -> None:
    """Write RESULTS.md, with the facts, the tables, and the setups of the sides."""
    text = ["# Benchmarks: results", "", "Written by `make bench`. Do not edit.", ""]
    text += [f"- {name}: {value}" for name, value in facts.items()]
    text += ["", "![tokens per second](results.png)", ""]
    for section in sections:
        text += [f"## {section.title}", "", section.table(), ""]
    of_sides = set_ups([section.race for section in sections])
    text += ["## How it was measured", "", HOW, "", "## Setups", "", of_sides, ""]
    path.write_text("\n".join(text))


HOW = """\
Each side is a process group. All sides of a table are pinned to the same cores and take short turns
on them, while the others are stopped. A value is the median over the turns, with the 10th and 90th
percentile (the extremes if there are fewer than ten turns). Ratios compare turns of the same round,
which are seconds apart, so other work on the machine slows all of them. Only tokens of text are
counted, not those that frame documents (bos, eos), because the bare tokenizers add none. CPU
seconds include the process and all its workers. The last column counts only the training process.
Every side reads the same documents repeatedly, from disk or memory and never over a network, so the
tokenizers' word caches are warm on every side. Loaders make rows of 2,048 tokens and batches of
8."""


def write_json(path: Path, facts: dict[str, str], sections: Sequence[Section]) -> None:
    """Write results.json, with every turn."""
    races = {
        f"{section.race.name}, {section.tokenizer}": [asdict(each) for each in section.results]
        for section in sections
    }
    path.write_text(json.dumps({"facts": facts, "races": races}, indent=1) + "\n")


# ---------------------------------------------------------------- the chart


def draw(path: Path, sections: Sequence[Section]) -> None:
    """Draw horizontal bars on a logarithmic scale, with one panel per tokenizer.

    The sides are sorted by their highest speed in any panel.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    measured = {
        section.tokenizer: {row["name"]: row for row in section.rows if not row["failure"]}
        for section in sections
    }
    names = sorted(
        dict.fromkeys(name for rows in measured.values() for name in rows),
        key=lambda name: max(
            rows[name]["wall"].median for rows in measured.values() if name in rows
        ),
    )
    figure, axes = plt.subplots(
        1,
        len(sections),
        figsize=(5.2 + 4.2 * len(sections), 1.6 + 0.36 * len(names)),
        sharey=True,
        sharex=True,
        squeeze=False,
    )
    for axis, (panel, rows) in zip(axes[0], measured.items(), strict=True):
        for bar, name in enumerate(names):
            if name in rows:
                _bar(axis, bar, rows[name])
        axis.set_title(panel, fontsize=11)
        axis.set_yticks(range(len(names)), names)
        axis.set_xscale("log")
        axis.set_xlabel("tokens per second (log scale)")
        axis.grid(axis="x", which="major", color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        low, high = axis.get_xlim()
        axis.set_xlim(low, high * 2.5)  # room for the numbers
    kinds = dict.fromkeys(row["kind"] for rows in measured.values() for row in rows.values())
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    title = "One worker, one core: tokens of text per second, median and 10th to 90th percentile"
    figure.suptitle(title, fontsize=12)
    figure.legend(handles, kinds, loc="lower center", ncols=len(kinds), frameon=False, fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bar(axis: Any, bar: int, row: dict[str, Any]) -> None:
    """Draw the median of one side as a bar and as a number, and its spread as a line."""
    speed: Spread = row["wall"]
    axis.barh(bar, speed.median, color=COLOURS[row["kind"]], height=0.68)
    axis.plot([speed.low, speed.high], [bar, bar], color="#333333", linewidth=1.2)
    text = f"{speed.median / 1e6:.1f} M" if speed.median >= 1e6 else f"{speed.median / 1e3:.0f} k"
    axis.text(max(speed.high, speed.median) * 1.08, bar, text, va="center", fontsize=9)
