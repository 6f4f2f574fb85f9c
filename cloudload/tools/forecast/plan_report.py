"""A plan in words, as a picture, and as one self-contained HTML page.

    RunPlan ─► list_sections ─► named lines ─► terminal, page
            └► timeline, levels, ends ─► SVG in the page, PNG

The page has no scripts and makes no requests.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from cloudload.system import reports
from cloudload.tools.forecast.result import Figure, NodePlan, RunPlan, StreamPlan

Section = tuple[str, list[tuple[str, str]]]
"""The title of a section, and the (name, text) of each of its lines."""

_MOST_WORLDS, _MOST_NODES, _MOST_EPOCHS = 40, 16, 6
_MOST_ENDS, _MOST_OF_NAME = 8, 24
_CACHES = {
    "all shards": "all_bytes",
    "working set": "working_set_bytes",
    "with read-ahead": "needed_bytes",
}
BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
"""Sizes and names of units, the largest first."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 940, 260, 116, 28, 16


def list_sections(plan: RunPlan) -> Iterator[Section]:
    """Yield the sections of a plan, in the order in which they are shown."""
    yield plan.description, [("based on", plan.basis)]
    yield "length", _list_length(plan)
    yield "streams", [(each.name, _stream(each, plan)) for each in plan.streams]
    yield "worlds", [("ranks", describe_worlds(plan))]
    yield "shard cache of a node", list(_list_cache(plan))
    yield "downloads", list(_list_downloads(plan))
    if plan.first_batch_s is not None:
        yield "measured on this machine", list(_list_speed(plan))


def _list_length(plan: RunPlan) -> list[tuple[str, str]]:
    return [
        ("steps", f"{plan.steps}, of {plan.global_batch:,} rows each"),
        ("rows", f"{plan.rows}, of {plan.seq_len:,} tokens each"),
        ("tokens", str(plan.tokens)),
        ("padding", describe_share(plan.padding)),
        ("epochs", str(plan.epochs)),
    ]


def _stream(each: StreamPlan, plan: RunPlan) -> str:
    tokens = each.tokens.with_unit("tokens", "token")
    epochs = each.epochs.with_unit("epochs", "epoch")
    text = f"{describe_share(each.share)} of tokens; {tokens}; {epochs}"
    if not any_stream_ends(plan):
        return text
    if each.last_step is None or each.tail_rows is None:
        return f"{text}; does not end"
    tail = each.tail_rows.with_unit("rows", "row")
    return f"{text}; ends in step {each.last_step}, with a tail of {tail}"


def any_stream_ends(plan: RunPlan) -> bool:
    """Whether any stream ends within the run."""
    return any(each.last_step is not None for each in plan.streams)


def list_early_ends(plan: RunPlan) -> list[tuple[int, str]]:
    """List (last step, label) of up to 8 streams that end before the run, sorted by step."""
    ends = [
        (round(each.last_step.value), each.name)
        for each in plan.streams
        if each.last_step is not None and each.last_step.value < plan.steps.value
    ]
    return [
        (step, f"end of {name if len(name) <= _MOST_OF_NAME else name[: _MOST_OF_NAME - 1] + '…'}")
        for step, name in sorted(ends)[:_MOST_ENDS]
    ]


def describe_share(figure: Figure) -> str:
    """Format a share and its range as percentages."""
    shown = f"{figure.value:.2%}"
    if figure.is_exact:
        return shown
    if not (figure.low == figure.low and figure.high == figure.high):
        return f"about {shown} (error unknown)"
    return f"about {shown} ({max(0.0, figure.low):.2%} to {min(1.0, figure.high):.2%})"


def describe_worlds(plan: RunPlan) -> str:
    """List the world sizes that work, as text."""
    shown = ", ".join(f"{size:,}" for size in plan.worlds[:_MOST_WORLDS])
    if len(plan.worlds) > _MOST_WORLDS:
        shown += ", …"
    if plan.any_world:
        return f"any; one that divides the {plan.num_lanes:,} lanes reads the least data: {shown}"
    return shown


def describe_bytes(figure: Figure) -> str:
    """Format a number of bytes and its range, such as `about 1.50 GiB (± 1.2%)`."""
    shown = shorten_bytes(figure.value)
    exact = f"{figure.value:,.0f} bytes"
    if figure.is_exact:
        return f"{exact} ({shown})" if figure.value >= 1 << 10 else exact
    return f"about {shown} ({figure.describe_error()})"


def shorten_bytes(value: float) -> str:
    """Format a number of bytes in binary units, such as `1.50 GiB`."""
    for size, unit in BYTE_UNITS:
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} bytes"


def _list_cache(plan: RunPlan) -> Iterator[tuple[str, str]]:
    for name, field in _CACHES.items():
        sizes = [(getattr(each, field), each.node) for each in plan.node_plans]
        size, node = max(sizes, key=lambda each: each[0].value)
        yield name, describe_bytes(size) + (f", on node {node}" if plan.nodes > 1 else "")
    yield (
        "least cache_limit",
        f"{plan.least_cache_bytes:,} bytes; with less, the loader refuses to start",
    )
    limit = plan.cache_limit_bytes
    yield "cache_limit", "none" if limit is None else f"{limit:,} bytes"


def _list_downloads(plan: RunPlan) -> Iterator[tuple[str, str]]:
    requests = plan.requests.with_unit("requests", "request")
    yield "all nodes", f"{describe_bytes(plan.bytes_downloaded)}; {requests}"
    for node in plan.node_plans[:_MOST_NODES] if plan.nodes > 1 else ():
        yield f"node {node.node}", describe_bytes(node.bytes_downloaded)
    if plan.nodes > _MOST_NODES:
        yield "…", f"{plan.nodes - _MOST_NODES:,} more nodes, listed by --json"
    yield "by epoch", describe_epochs(plan.node_plans[0])
    for route, cost in plan.costs.items():
        yield (
            f"cost, {route}",
            f"{cost.value:,.2f} {plan.currency}"
            + ("" if cost.low == cost.high else f" ({cost.low:,.2f} to {cost.high:,.2f})"),
        )


def describe_epochs(node: NodePlan) -> str:
    """Describe the bytes that a node downloads in each epoch."""
    sizes = np.array(node.bytes_by_epoch)
    used = int(np.flatnonzero(sizes).max(initial=-1)) + 1
    shown = [shorten_bytes(each) for each in node.bytes_by_epoch[: min(used, _MOST_EPOCHS)]]
    if used > _MOST_EPOCHS:
        shown.append("…")
    elif used < len(sizes):
        shown.append("then none" if used else "none")
    return f"{', '.join(shown)} on node {node.node}"


def _list_speed(plan: RunPlan) -> Iterator[tuple[str, str]]:
    assert plan.first_batch_s is not None
    assert plan.tokens_per_worker_s is not None
    yield "first batch", f"{plan.first_batch_s.with_unit('s')}, from an empty cache"
    yield "a worker", plan.tokens_per_worker_s.with_unit("tokens/s")
    if plan.workers is not None:
        low, high = f"{plan.workers.low:,.0f}", f"{plan.workers.high:,.0f}"
        ends = "" if low == high else f" ({low} to {high})"
        yield "workers needed", f"{plan.workers.value:,.0f} per rank{ends}"


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
        (shorten_bytes(working.value), "working set of a node", working),
        (
            shorten_bytes(plan.bytes_downloaded.value),
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
    lines = _list_levels(plan)
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
        parts.append(_write(shorten_bytes(level), _LEFT - 8, y(level) + 4))
        anchor = "end" if share == 1 else "middle" if share else "start"
        shown = f"{min(step, last - 1):,.0f}"  # the last label is the run's last step
        parts.append(_write(shown, x(step), _HEIGHT - 8, anchor))
    for line, (step, name) in enumerate(list_early_ends(plan)):
        parts += _draw_end(name, x(step + 1), y(0), line, is_left=step < (last + 1) / 4)
    for kind, text, level in lines:
        parts.append(_draw_line(kind, y(level)))
        parts.append(_write(text, _WIDTH - 14, y(level) - 5))
    label = "Bytes of shards in use on the busiest node, by step"
    return (
        f'<h2>{label}</h2><div class="table"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></div>'
    )


def _list_levels(plan: RunPlan) -> list[tuple[str, str, float]]:
    """List (kind, text, bytes) of the lines to draw across the picture of the busiest node."""
    node = max(plan.node_plans, key=lambda each: each.needed_bytes.value)
    levels = [("ahead", "with read-ahead", node.needed_bytes.value)]
    if plan.cache_limit_bytes is not None:
        levels.append(("limit", "cache_limit", float(plan.cache_limit_bytes)))
    return [(kind, f"{name}: {shorten_bytes(level)}", level) for kind, name, level in levels]


def _draw_end(name: str, x: float, bottom: float, line: int, *, is_left: bool) -> Iterator[str]:
    """Draw where a stream ends, and its name on line `line`, on the side with more space."""
    top, at = _TOP + 24, x + 5 if is_left else x - 5  # below the level labels
    yield f'<line class="end" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
    yield _write(name, at, top + 10 + 15 * line, "start" if is_left else "end")


def _draw_line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}"/>'


def _write(text: str, x: float, y: float, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _render_sections(plan: RunPlan) -> Iterator[str]:
    for title, rows in list(list_sections(plan))[1:]:
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
            describe_share(each.share),
            str(each.epochs),
        ]
        for each in plan.streams
    ]
    if any_stream_ends(plan):
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
            describe_bytes(each.working_set_bytes),
            describe_bytes(each.all_bytes),
            describe_bytes(each.bytes_downloaded),
            describe_epochs(each).rpartition(" on ")[0],
        )
        for each in nodes
    ]
    return _render_table("Nodes", heads, rows)


def _render_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = reports.render_table("", heads, rows)
    return f'<h2>{html.escape(title)}</h2><div class="table">{table}</div>'


def draw_plan(plan: RunPlan, path: Path) -> None:
    """Draw the cache of the busiest node over the run as a PNG; see `draw_picture`."""
    steps, sizes = ([getattr(each, name) for each in plan.timeline] for name in ("step", "bytes"))
    lines = _list_levels(plan)
    top = max(1.0, *sizes, *(level for _, _, level in lines))
    unit, name = next((each for each in BYTE_UNITS if top >= each[0]), (1, "bytes"))
    edges = [*steps, round(plan.steps.value) + 1]
    summary = f"{plan.steps} steps    working set {shorten_bytes(max(sizes, default=0))}"
    title = "Shards in use on the busiest node"
    with reports.draw_picture(path, title, summary) as axes:
        axes.stairs(
            [size / unit for size in sizes], edges, fill=True, color=reports.BLUE, alpha=0.35
        )
        for kind, text, level in lines:
            color = reports.RED if kind == "limit" else reports.GRAY
            axes.axhline(level / unit, color=color, linestyle="--", linewidth=1)
            style: dict[str, Any] = {"color": color, "fontsize": 9, "ha": "right", "va": "bottom"}
            axes.annotate(text, (0.99, level / unit), xycoords=("axes fraction", "data"), **style)
        for index, (step, text) in enumerate(list_early_ends(plan)):
            axes.axvline(step + 1, color=reports.GRAY, linestyle=":", linewidth=1)
            is_left = step < edges[-1] / 4
            axes.annotate(
                text,
                (step + 1, 0.8 - 0.06 * index),
                (4 if is_left else -4, 0),
                color=reports.GRAY,
                fontsize=9,
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="left" if is_left else "right",
            )
        axes.set_ylabel(name)
        axes.set_ylim(0, 1.12 * top / unit)
        axes.set_xlim(1, edges[-1])
        axes.set_xlabel("step")
