"""A plan in words: sections of named lines, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator

from cloudload.forecast.figure import Figure
from cloudload.forecast.run_plan import NodePlan, RunPlan, StreamPlan

Section = tuple[str, list[tuple[str, str]]]
"""A title, and (name, text) of each line."""

_MOST_WORLDS, _MOST_NODES, _MOST_EPOCHS = 40, 16, 6
BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
"""Sizes and names of units, the largest first."""


def list_sections(plan: RunPlan) -> Iterator[Section]:
    """Yield the sections of a plan."""
    yield plan.description, [("based on", plan.basis)]
    yield "length", _list_length(plan)
    yield "streams", [(each.name, line) for each in plan.streams for line in [_stream(each)]]
    yield "worlds", [("ranks", describe_worlds(plan))]
    yield "shard cache of a node", list(_list_cache(plan))
    yield "downloads", list(_list_downloads(plan))
    if plan.first_batch_s is not None:
        yield "measured on this machine", list(_list_speed(plan))


def _list_length(plan: RunPlan) -> list[tuple[str, str]]:
    return [
        ("steps", f"{plan.steps}, of {plan.global_batch:,} rows"),
        ("rows", f"{plan.rows}, of {plan.seq_len:,} tokens"),
        ("tokens", str(plan.tokens)),
        ("padding", describe_share(plan.padding)),
        ("epochs", str(plan.epochs)),
    ]


def _stream(each: StreamPlan) -> str:
    return f"{describe_share(each.share)} of tokens; {each.tokens} tokens; {each.epochs} epochs"


def describe_share(figure: Figure) -> str:
    """A share as a percentage."""
    shown = f"{figure.value:.2%}"
    if figure.is_exact:
        return shown
    if not (figure.low == figure.low and figure.high == figure.high):
        return f"about {shown} (error unknown)"
    return f"about {shown} ({max(0.0, figure.low):.2%} to {min(1.0, figure.high):.2%})"


def describe_worlds(plan: RunPlan) -> str:
    """The world sizes that work."""
    shown = ", ".join(f"{size:,}" for size in plan.worlds[:_MOST_WORLDS])
    if len(plan.worlds) > _MOST_WORLDS:
        shown += ", …"
    if plan.any_world:
        return f"any; reads least if it divides the {plan.num_lanes:,} lanes: {shown}"
    return shown


def describe_bytes(figure: Figure) -> str:
    """A number of bytes, such as `1.5 GiB`, and its range."""
    shown = shorten_bytes(figure.value)
    exact = f"{figure.value:,.0f} bytes"
    if figure.is_exact:
        return f"{exact} ({shown})" if figure.value >= 1 << 10 else exact
    return f"about {shown} ({figure.describe_error()})"


def shorten_bytes(value: float) -> str:
    """A number of bytes in binary units."""
    for size, unit in BYTE_UNITS:
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} bytes"


def _list_cache(plan: RunPlan) -> Iterator[tuple[str, str]]:
    node = max(plan.node_plans, key=lambda each: each.needed_bytes.value)
    of_node = f", on node {node.node}" if plan.nodes > 1 else ""
    yield "all shards", describe_bytes(node.all_bytes) + of_node
    yield "working set", describe_bytes(node.working_set_bytes)
    yield "with read-ahead", describe_bytes(node.needed_bytes)
    yield "least cache_limit", f"{plan.least_cache_bytes:,} bytes, or the loader refuses to start"
    limit = plan.cache_limit_bytes
    yield "cache_limit", "none" if limit is None else f"{limit:,} bytes"


def _list_downloads(plan: RunPlan) -> Iterator[tuple[str, str]]:
    yield "all nodes", f"{describe_bytes(plan.bytes_downloaded)}; {plan.requests} requests"
    for node in plan.node_plans[:_MOST_NODES] if plan.nodes > 1 else ():
        yield f"node {node.node}", describe_bytes(node.bytes_downloaded)
    if plan.nodes > _MOST_NODES:
        yield "…", f"{plan.nodes - _MOST_NODES:,} more nodes, in --json"
    yield "by epoch", describe_epochs(plan.node_plans[0])
    for route, cost in plan.costs.items():
        yield (
            f"cost, {route}",
            f"{cost.value:,.2f} {plan.currency}"
            + ("" if cost.low == cost.high else f" ({cost.low:,.2f} to {cost.high:,.2f})"),
        )


def describe_epochs(node: NodePlan) -> str:
    """The bytes that a node downloads in each epoch."""
    shown = [shorten_bytes(each) for each in node.bytes_by_epoch[:_MOST_EPOCHS]]
    if len(node.bytes_by_epoch) > _MOST_EPOCHS:
        shown.append("…")
    return f"{', '.join(shown)} on node {node.node}"


def _list_speed(plan: RunPlan) -> Iterator[tuple[str, str]]:
    assert plan.first_batch_s is not None
    assert plan.tokens_per_worker_s is not None
    yield "first batch", f"{plan.first_batch_s} s, from an empty cache"
    yield "a worker", f"{plan.tokens_per_worker_s} tokens/s"
    if plan.workers is not None:
        low, high = f"{plan.workers.low:,.0f}", f"{plan.workers.high:,.0f}"
        ends = "" if low == high else f" ({low} to {high})"
        yield "workers needed", f"{plan.workers.value:,.0f} per rank{ends}"
