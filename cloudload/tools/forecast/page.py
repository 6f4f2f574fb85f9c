"""Render a plan as one self-contained HTML page, without scripts or requests, or as a picture."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from cloudload.system import reports
from cloudload.tools.count.picture import check_picture
from cloudload.tools.forecast import text_report
from cloudload.tools.forecast.result import Figure, NodePlan, RunPlan

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 940, 260, 116, 28, 16

_BLUE, _RED, _GRAY = "#2a6fbb", "#c0392b", "#666666"


def render_plan(plan: RunPlan) -> str:
    """Render a plan as an HTML page. All text is escaped."""
    page = (files("cloudload.tools.forecast") / "page_files" / "plan.html").read_text("utf-8")
    return Template(page).substitute(
        title=html.escape("Plan of a run"),
        description=html.escape(plan.description),
        basis=html.escape(plan.basis),
        warnings="".join(
            f'<div class="warning">{html.escape(each)}</div>' for each in plan.warnings
        ),
        cards="".join(_list_cards(plan)),
        picture=_draw(plan),
        sections="".join(_render_sections(plan)),
    )


def _list_cards(plan: RunPlan) -> Iterator[str]:
    working = max((each.working_set_bytes for each in plan.node_plans), key=lambda each: each.value)
    shown: list[tuple[str, str, Figure]] = [
        (f"{plan.steps.value:,.0f}", "steps", plan.steps),
        (f"{plan.tokens.value:,.0f}", "tokens", plan.tokens),
        (f"{plan.epochs.value:,.3g}", "epochs", plan.epochs),
        (text_report.shorten_bytes(working.value), "working set of a node", working),
        (
            text_report.shorten_bytes(plan.bytes_downloaded.value),
            "downloaded",
            plan.bytes_downloaded,
        ),
    ]
    for value, name, figure in shown:
        note = f"{name}, {figure.describe_error()}"
        yield f"<div><b>{html.escape(value)}</b><span>{note}</span></div>"


def _draw(plan: RunPlan) -> str:
    """Draw the bytes in use over the run as SVG."""
    points = plan.timeline
    if not any(each.bytes for each in points):
        return "<p>All shards are mapped in place, so no cache is used.</p>"
    node = max(plan.node_plans, key=lambda each: each.needed_bytes.value)
    lines = [("ahead", "with read-ahead", node.needed_bytes.value)]
    if plan.cache_limit_bytes is not None:
        lines.append(("limit", "cache_limit", float(plan.cache_limit_bytes)))
    top = 1.1 * max(*(each.bytes for each in points), *(level for _, _, level in lines))
    last = max(2.0, plan.steps.value + 1)

    def x(step: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 10) * (step - 1) / (last - 1), 1)

    def y(size: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * size / top, 1)

    stops = [*(each.step for each in points[1:]), last]
    edge = " ".join(
        f"{x(point.step)},{y(point.bytes)} {x(stop)},{y(point.bytes)}"
        for point, stop in zip(points, stops, strict=True)
    )
    parts = [
        f'<polygon class="area" points="{x(1)},{y(0)} {edge} {x(last)},{y(0)}"/>',
        f'<polyline class="edge" points="{edge}"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        level, step = share * top / 1.1, 1 + share * (last - 1)
        parts.append(_draw_line("axis", y(level)))
        parts.append(_write(text_report.shorten_bytes(level), _LEFT - 8, y(level) + 4))
        anchor = "end" if share == 1 else "middle" if share else "start"
        shown = f"{min(step, last - 1):,.0f}"  # the last label is the run's last step
        parts.append(_write(shown, x(step), _HEIGHT - 8, anchor))
    for number, (step, name) in enumerate(text_report.list_early_ends(plan)):
        at, is_left = x(step + 1), step < (last + 1) / 4
        first, index = _TOP + 24, at + 5 if is_left else at - 5  # below the level labels
        parts.append(f'<line class="end" x1="{at}" x2="{at}" y1="{first}" y2="{y(0)}"/>')
        parts.append(_write(name, index, first + 10 + 15 * number, "start" if is_left else "end"))
    for kind, name, level in lines:
        parts.append(_draw_line(kind, y(level)))
        parts.append(
            _write(f"{name}: {text_report.shorten_bytes(level)}", _WIDTH - 14, y(level) - 5)
        )
    label = "Bytes of shards in use on the busiest node, by step"
    return (
        f'<h2>{label}</h2><div class="table"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></div>'
    )


def _draw_line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}"/>'


def _write(text: str, x: float, y: float, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _render_sections(plan: RunPlan) -> Iterator[str]:
    for title, rows in list(text_report.list_sections(plan))[1:]:
        if title == "streams":
            yield _render_streams(plan)
        else:
            yield _render_table(title.capitalize(), (), rows)
    yield _render_nodes(plan.node_plans)


def _render_streams(plan: RunPlan) -> str:
    heads = ["stream", "samples", "tokens", "share", "epochs"]
    rows = [
        [
            each.name,
            f"{each.samples:,}",
            str(each.tokens),
            text_report.describe_share(each.share),
            str(each.epochs),
        ]
        for each in plan.streams
    ]
    if text_report.has_stream_ends(plan):
        heads += ["last step", "rows of tail"]
        for row, each in zip(rows, plan.streams, strict=True):
            row += ["none" if end is None else str(end) for end in (each.last_step, each.tail_rows)]
    return _render_table("Streams", heads, rows)


def _render_nodes(nodes: Sequence[NodePlan]) -> str:
    heads = ("node", "shards", "working set", "all shards", "downloaded", "by epoch")
    rows = [
        (
            str(each.node),
            str(each.shards),
            text_report.describe_bytes(each.working_set_bytes),
            text_report.describe_bytes(each.all_bytes),
            text_report.describe_bytes(each.bytes_downloaded),
            text_report.describe_epochs(each).rpartition(" on ")[0],
        )
        for each in nodes
    ]
    return _render_table("Nodes", heads, rows)


def _render_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = reports.render_table("", heads, rows)
    return f'<h2>{html.escape(title)}</h2><div class="table">{table}</div>'


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
    unit, name = next((each for each in text_report.BYTE_UNITS if top >= each[0]), (1, "bytes"))
    edges = [*steps, round(plan.steps.value) + 1]
    axes.stairs([size / unit for size in sizes], edges, fill=True, color=_BLUE, alpha=0.35)
    for level, color, what in lines:
        axes.axhline(level / unit, color=color, linestyle="--", linewidth=1)
        text = f"{what}: {text_report.shorten_bytes(level)}"
        axes.annotate(
            text,
            (0.99, level / unit),
            color=color,
            fontsize=9,
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
        )
    for index, (step, what) in enumerate(text_report.list_early_ends(plan)):
        axes.axvline(step + 1, color=_GRAY, linestyle=":", linewidth=1)
        is_left = step < edges[-1] / 4
        axes.annotate(
            what,
            (step + 1, 0.8 - 0.06 * index),
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
    summary = (
        f"{plan.steps} steps    working set {text_report.shorten_bytes(max(sizes, default=0))}"
    )
    axes.text(0, 1.02, summary, transform=axes.transAxes, color=_GRAY, fontsize=9)
    picture.savefig(path, dpi=160, format="png", metadata={"Software": None})
