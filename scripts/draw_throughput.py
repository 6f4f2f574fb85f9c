"""Draw the bar chart `docs/figures/throughput.svg` from `benchmarks/results.json`.

Run it with `python -m scripts.draw_throughput`.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs/figures/throughput.svg"
STYLE_OF = ROOT / "docs/figures/pipeline.svg"
RACE = "peers, gpt2"

_LABEL_END, _BAR_START, _BAR_LENGTH, _ROW_HEIGHT, _TOP = 226, 232, 190, 26, 56
_BARE = "bare tokenizer"


def draw() -> str:
    """Return the figure as SVG. Its bars have a linear scale."""
    results = json.loads((ROOT / "benchmarks/results.json").read_text("utf-8"))
    sides = [side for side in results["races"][RACE] if side["entry"]["kind"] != _BARE]
    speeds = {side["entry"]["name"]: _speeds(side) for side in sides if side["turns"]}
    names = sorted(speeds, key=lambda name: -speeds[name][1])
    most = speeds[names[0]][2]
    lines = [
        '<text x="10" y="20" class="b">Million tokens per second, GPT-2 tokenizer</text>',
        '<text x="10" y="39" class="s">worker and training process on one core; '
        "lines: 10th to 90th percentile</text>",
    ]
    for number, name in enumerate(names):
        low, median, high = speeds[name]
        lines += _bar(name, _TOP + _ROW_HEIGHT * number, low / most, median / most, high / most)
        value = f"{median / 1e6:.1f}" if median >= 1e7 else f"{median / 1e6:.2f}"
        x = _BAR_START + _BAR_LENGTH * high / most + 6
        lines.append(f'<text x="{x:.1f}" y="{_TOP + _ROW_HEIGHT * number + 14}">{value}</text>')
    height = _TOP + _ROW_HEIGHT * len(names) + 4
    body = "\n".join(f"  {line}" for line in lines)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 {height}" class="cl">'
    return f"{opening}\n{draw_style()}{body}\n</svg>\n"


def _speeds(side: dict[str, Any]) -> tuple[float, float, float]:
    speeds = [turn["tokens"] / turn["wall"] for turn in side["turns"]]
    low, median, high = np.percentile(speeds, (10, 50, 90))
    return float(low), float(median), float(high)


def _bar(name: str, y: int, low: float, median: float, high: float) -> list[str]:
    is_ours = name.startswith("cloudload")
    style, shade = ("t e b", "bar") if is_ours else ("t e", "other")
    start, end = (_BAR_START + _BAR_LENGTH * value for value in (low, high))
    width = max(1.5, _BAR_LENGTH * median)
    return [
        f'<text x="{_LABEL_END}" y="{y + 14}" class="{style}">{html.escape(name)}</text>',
        f'<rect x="{_BAR_START}" y="{y}" width="{width:.1f}" height="18" class="{shade}"/>',
        f'<line x1="{start:.1f}" y1="{y + 9}" x2="{end:.1f}" y2="{y + 9}" class="spread"/>',
    ]


def draw_style() -> str:
    """Return the `<style>` element that all figures share."""
    style = re.search(r" *<style>.*?</style>\n", STYLE_OF.read_text("utf-8"), re.DOTALL)
    assert style is not None
    return style[0]


if __name__ == "__main__":
    FIGURE.write_text(draw(), "utf-8")
