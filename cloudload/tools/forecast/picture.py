"""Draw the shards in use over a run as a PNG, with matplotlib."""

from __future__ import annotations

from pathlib import Path

from cloudload.tools.count.picture import check_picture
from cloudload.tools.forecast.run_plan import RunPlan
from cloudload.tools.forecast.words import BYTE_UNITS, list_early_ends, shorten_bytes

_BLUE, _RED, _GRAY = "#2a6fbb", "#c0392b", "#666666"


def draw_plan(plan: RunPlan, path: Path) -> None:
    """Draw the cache of the busiest node over the run: a PNG of 1280 by 720 pixels.

    Raises `ValueError` if matplotlib or the folder is missing, and `OSError` if writing fails.
    """
    check_picture(path)
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.add_subplot()
    steps, sizes = ([getattr(each, name) for each in plan.timeline] for name in ("step", "bytes"))
    node = max(plan.node_plans, key=lambda each: each.needed_bytes.value)
    lines = [(node.needed_bytes.value, _GRAY, "with read-ahead")]
    if plan.cache_limit_bytes is not None:
        lines.append((plan.cache_limit_bytes, _RED, "cache_limit"))
    top = max(1.0, *sizes, *(level for level, _, _ in lines))
    unit, name = next((each for each in BYTE_UNITS if top >= each[0]), (1, "bytes"))
    edges = [*steps, round(plan.steps.value) + 1]
    axes.stairs([size / unit for size in sizes], edges, fill=True, color=_BLUE, alpha=0.35)
    for level, color, what in lines:
        axes.axhline(level / unit, color=color, linestyle="--", linewidth=1)
        text = f"{what}: {shorten_bytes(level)}"
        axes.annotate(
            text,
            (0.99, level / unit),
            color=color,
            fontsize=9,
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
        )
    for place, (step, what) in enumerate(list_early_ends(plan)):
        axes.axvline(step + 1, color=_GRAY, linestyle=":", linewidth=1)
        is_left = step < edges[-1] / 4
        axes.annotate(
            what,
            (step + 1, 0.8 - 0.06 * place),
            (4 if is_left else -4, 0),
            color=_GRAY,
            fontsize=9,
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if is_left else "right",
        )
    axes.set_ylabel(name)
    axes.set_ylim(0, 1.12 * top / unit)
    axes.set_xlim(1, edges[-1])
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.set_title("Shards in use on the busiest node\n", loc="left", fontsize=12)
    summary = f"{plan.steps} steps    working set {shorten_bytes(max(sizes, default=0))}"
    axes.text(0, 1.02, summary, transform=axes.transAxes, color=_GRAY, fontsize=9)
    picture.savefig(path, dpi=160, format="png", metadata={"Software": None})
