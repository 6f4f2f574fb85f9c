"""A plan as text: sections of named lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cloudload.system import counted
from cloudload.tools.forecast.result import BalancePlan, Figure, NodePlan, RunPlan, StreamPlan

_MOST_WORLDS, _MOST_NODES, _MOST_EPOCHS = 40, 16, 6
_CACHES = {
    "all shards": "all_bytes",
    "working set": "working_set_bytes",
    "with read-ahead": "needed_bytes",
}
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_Lines = Iterable[tuple[str, str]]
"""The (name, text) of each line of a section."""


def describe_plan(plan: RunPlan) -> Iterator[str]:
    """Yield the lines of a plan as text."""
    for title, lines in _list_sections(plan):
        yield title
        named = list(lines)
        width = max((len(name) for name, _ in named), default=0)
        for name, text in named:
            yield f"  {name:<{width}}  {text}".rstrip()
        yield ""
    for warning in plan.warnings:
        yield f"warning: {warning}"


def _list_sections(plan: RunPlan) -> Iterator[tuple[str, _Lines]]:
    yield plan.description, [("based on", plan.basis)]
    yield "length", _list_length(plan)
    yield "streams", [(each.name, _stream(each, plan)) for each in plan.streams]
    yield "worlds", [("ranks", _describe_worlds(plan))]
    yield "shard cache of a node", _list_cache(plan)
    yield "downloads", _list_downloads(plan)
    if plan.balance is not None:
        yield "attention, with documents apart", _list_balance(plan.balance)
    if plan.first_batch_s is not None:
        yield "measured on this machine", _list_speed(plan)


def _list_length(plan: RunPlan) -> _Lines:
    return [
        ("steps", f"{plan.steps}, of {plan.global_batch:,} rows each"),
        ("rows", f"{plan.rows}, of {plan.seq_len:,} tokens each"),
        ("tokens", str(plan.tokens)),
        ("padding", _describe_share(plan.padding)),
        ("epochs", str(plan.epochs)),
    ]


def _stream(each: StreamPlan, plan: RunPlan) -> str:
    tokens = each.tokens.with_unit("tokens", "token")
    epochs = each.epochs.with_unit("epochs", "epoch")
    text = f"{_describe_share(each.share)} of tokens; {tokens}; {epochs}"
    if each.selected < each.samples:
        text += (
            f"; {each.selected:,} of {each.samples:,} documents selected, for whose bytes "
            f"{each.egress:.2f} times as many are fetched"
        )
    if all(other.last_step is None for other in plan.streams):
        return text
    if each.last_step is None or each.tail_rows is None:
        return f"{text}; does not end"
    tail = each.tail_rows.with_unit("rows", "row")
    return f"{text}; ends in step {each.last_step}, with a tail of {tail}"


def _describe_share(figure: Figure) -> str:
    """Format a share and its range as percentages."""
    shown = f"{figure.value:.2%}"
    if figure.is_exact:
        return shown
    if not (figure.low == figure.low and figure.high == figure.high):
        return f"about {shown} (error unknown)"
    return f"about {shown} ({max(0.0, figure.low):.2%} to {min(1.0, figure.high):.2%})"


def _describe_worlds(plan: RunPlan) -> str:
    """List the world sizes that work, as text."""
    shown = ", ".join(f"{size:,}" for size in plan.worlds[:_MOST_WORLDS])
    if len(plan.worlds) > _MOST_WORLDS:
        shown += ", …"
    if plan.any_world:
        return f"any; one that divides the {plan.num_lanes:,} lanes reads the least data: {shown}"
    return shown


def _describe_bytes(figure: Figure) -> str:
    """Format a number of bytes and its range, such as `about 1.50 GiB (± 1.2%)`."""
    shown = _shorten_bytes(figure.value)
    exact = f"{figure.value:,.0f} bytes"
    if figure.is_exact:
        return f"{exact} ({shown})" if figure.value >= 1 << 10 else exact
    return f"about {shown} ({figure.describe_error()})"


def _shorten_bytes(value: float) -> str:
    """Format a number of bytes in binary units, such as `1.50 GiB`."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} bytes"


def _list_cache(plan: RunPlan) -> Iterator[tuple[str, str]]:
    for name, field in _CACHES.items():
        sizes = [(getattr(each, field), each.node) for each in plan.node_plans]
        size, node = max(sizes, key=lambda each: each[0].value)
        yield name, _describe_bytes(size) + (f", on node {node}" if plan.nodes > 1 else "")
    yield (
        "least cache_limit",
        f"{plan.least_cache_bytes:,} bytes; with less, the loader refuses to start",
    )
    limit = plan.cache_limit_bytes
    yield "cache_limit", "none" if limit is None else f"{limit:,} bytes"


def _list_downloads(plan: RunPlan) -> Iterator[tuple[str, str]]:
    requests = plan.requests.with_unit("requests", "request")
    yield "all nodes", f"{_describe_bytes(plan.bytes_downloaded)}; {requests}"
    for node in plan.node_plans[:_MOST_NODES] if plan.nodes > 1 else ():
        yield f"node {node.node}", _describe_bytes(node.bytes_downloaded)
    if plan.nodes > _MOST_NODES:
        yield "…", f"{plan.nodes - _MOST_NODES:,} more nodes, listed by --json"
    yield "by epoch", _describe_epochs(plan.node_plans[0])


def _describe_epochs(node: NodePlan) -> str:
    """Describe the bytes that a node downloads in each epoch."""
    sizes = np.array(node.bytes_by_epoch)
    used = int(np.flatnonzero(sizes).max(initial=-1)) + 1
    shown = [_shorten_bytes(each) for each in node.bytes_by_epoch[: min(used, _MOST_EPOCHS)]]
    if used > _MOST_EPOCHS:
        shown.append("…")
    elif used < len(sizes):
        shown.append("then none" if used else "none")
    return f"{', '.join(shown)} on node {node.node}"


def _list_balance(balance: BalancePlan) -> _Lines:
    return [
        ("a token attends", f"within {balance.attended.with_unit('tokens', 'token')}, on average"),
        ("slowest rank", f"{balance.dealt} times the mean of all ranks, without balance"),
        ("with balance", f"{balance.balanced} times the mean"),
        ("based on", counted(balance.steps, "step")),
    ]


def _list_speed(plan: RunPlan) -> Iterator[tuple[str, str]]:
    assert plan.first_batch_s is not None
    assert plan.tokens_per_worker_s is not None
    yield "first batch", f"{plan.first_batch_s.with_unit('s')}, from an empty cache"
    yield "a worker", plan.tokens_per_worker_s.with_unit("tokens/s")
    if plan.workers is not None:
        low, high = f"{plan.workers.low:,.0f}", f"{plan.workers.high:,.0f}"
        ends = "" if low == high else f" ({low} to {high})"
        yield "workers needed", f"{plan.workers.value:,.0f} per rank{ends}"
