"""Draw the curves `docs/figures/fair_start.svg` from `benchmarks/fair_start.json`.

Run it with `python -m scripts.draw_fair_start`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scripts.draw_throughput import ROOT, draw_style

FIGURE = ROOT / "docs/figures/fair_start.svg"
RESULTS = ROOT / "benchmarks/fair_start.json"
TABLE = "fair, curves: corpus, gpt2"
PANELS = (
    ("per row", "Documents per row", 0.5, 1.2),
    ("size", "Mean size of the documents", 0.5, 4),
)
LINES = (("without", "spread dash"), ("with", "go"))

_LEFT, _RIGHT, _TOP, _HEIGHT, _GAP, _MOST_ROWS = 52, 466, 52, 84, 50, 60
_FAIR = 0.1


def draw() -> str:
    """Return the figure as SVG."""
    curves = json.loads(RESULTS.read_text("utf-8"))[TABLE]
    lines = [
        '<text x="10" y="20" class="b">First rows, relative to the whole run</text>',
        '<text x="10" y="38" class="s">line: with a fair start; dashes: without; band: ±10%</text>',
    ]
    for place, panel in enumerate(PANELS):
        lines += _draw_panel(curves, panel, _TOP + place * (_HEIGHT + _GAP))
    bottom = _TOP + len(PANELS) * (_HEIGHT + _GAP)
    lines.append(f'<text x="{_RIGHT}" y="{bottom + 4}" class="s e">rows of each lane</text>')
    body = "\n".join(f"  {line}" for line in lines)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 {bottom + 12}" class="cl">'
    return f"{opening}\n{draw_style()}{body}\n</svg>\n"


def _draw_panel(
    curves: list[dict[str, Any]], panel: tuple[str, str, float, float], top: int
) -> Iterator[str]:
    """Yield the elements of the curves of a figure. `panel` is (figure, title, lowest, highest)."""
    name, title, low, high = panel

    def x_of(row: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * row / _MOST_ROWS

    def y_of(ratio: float) -> float:
        return top + 22 + _HEIGHT * (high - ratio) / (high - low)

    yield f'<text x="{_LEFT}" y="{top + 12}" class="t">{title}</text>'
    band = y_of(1 - _FAIR) - y_of(1 + _FAIR)
    yield (
        f'<rect x="{_LEFT}" y="{y_of(1 + _FAIR):.1f}" width="{_RIGHT - _LEFT}" '
        f'height="{band:.1f}" class="pad" style="stroke: none"/>'
    )
    for ratio in (low, 1, high):
        yield f'<text x="{_LEFT - 6}" y="{y_of(ratio) + 4:.1f}" class="s e">{ratio:g}</text>'
    yield f'<path d="M{_LEFT} {y_of(high):.1f}V{y_of(low):.1f}H{_RIGHT}"/>'
    for row in range(0, _MOST_ROWS + 1, 20):
        yield f'<text x="{x_of(row):.1f}" y="{y_of(low) + 16:.1f}" class="s m">{row}</text>'
    for line, style in LINES:
        points = [
            f"{x_of(each['rows of a lane from'] + 5):.1f} {y_of(1 + each[name]):.1f}"
            for each in curves
            if each["fair start"] == line and each["rows of a lane from"] < _MOST_ROWS
        ]
        yield f'<path d="M{"L".join(points)}" class="{style}"/>'


if __name__ == "__main__":
    FIGURE.write_text(draw(), "utf-8")
