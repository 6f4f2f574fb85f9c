"""`cloudload plan`: forecast a run: steps, epochs, cache, downloads, cost, workers.

Forecast a run before it starts: steps and epochs, the cache of each node, downloads and their cost,
the time to the first batch, and the workers needed.

If the data has token lengths (see cloudload count), the figures are exact. Otherwise, a sample of
documents is tokenized, and the figures are estimates with error bounds. The time to the first batch
and the speed of the reader are measured on this machine.

examples:
  cloudload plan --data s3://bucket/mds --tokenizer gpt2 --seq-len 2048 --batch-size 8 \\
      --tokens 300B --nodes 16 --ranks-per-node 8 --html plan.html
  cloudload plan --config run.yaml --steps 1000
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudload.tools.cli import command
from cloudload.tools.cli.count_command import parse_share
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import escape, print_result
from cloudload.tools.cli.run_options import (
    add_loader_options,
    read_loader_options,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.tools.forecast.result import RunPlan

_BARS, _HEIGHT = " ▁▂▃▄▅▆▇█", 60


def add_plan(parser: command.CommandParser) -> None:
    from cloudload.tools.forecast.plan_run import plan_run

    add = command.set_up(parser, _plan)
    add_declared(
        add,
        plan_run,
        "tokens steps nodes ranks_per_node gpu_tokens_per_s prices sample measure",
        tokens={"type": str},
        prices={"type": command.path_argument, "metavar": "FILE"},
        sample={"type": parse_share, "metavar": "SHARE"},
    )
    add("--html", type=command.path_argument, metavar="FILE", help="also write an HTML page")
    png = "also plot cache use over the run (requires matplotlib)"
    add("--png", type=command.path_argument, metavar="FILE", help=png)
    add_loader_options(parser)


@without_start_log()
def _plan(options: argparse.Namespace) -> int:
    from cloudload.tools.forecast.plan_report import draw_plan, render_plan
    from cloudload.tools.forecast.plan_run import plan_run

    arguments = read_loader_options(options, required="data seq_len batch_size")
    _check_outputs(options)
    plan = plan_run(**{**list_given(options, plan_run), **arguments})
    if options.png is not None:
        draw_plan(plan, options.png)
    if options.html is not None:
        options.html.write_text(render_plan(plan), "utf-8")
    print_result(plan, describe_plan, as_json=options.json)
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    from cloudload.system import reports

    if options.png is not None:
        reports.check_picture(options.png)
    command.check_output_path("--png", options.png, options)
    command.check_output_path("--html", options.html, options)


def describe_plan(plan: RunPlan) -> Iterator[str]:
    """Yield the lines of a plan as text for the terminal."""
    from cloudload.tools.forecast import plan_report

    for title, rows in plan_report.list_sections(plan):
        yield escape(title)
        width = max((len(escape(name)) for name, _ in rows), default=0)
        for name, text in rows:
            yield f"  {escape(name):<{width}}  {escape(text)}".rstrip()
        yield ""
    yield from _draw(plan)
    for warning in plan.warnings:
        yield f"warning: {escape(warning)}"


def _draw(plan: RunPlan) -> Iterator[str]:
    """Draw the bytes of shards in use over the run, as a line of bars."""
    if len(plan.timeline) < 2 or not any(point.bytes for point in plan.timeline):
        return
    step = len(plan.timeline) / _HEIGHT
    levels = [
        max(
            point.bytes
            for point in plan.timeline[int(at * step) : int(at * step) + max(1, math.ceil(step))]
        )
        for at in range(min(_HEIGHT, len(plan.timeline)))
    ]
    most = max(levels)
    bars = "".join(_BARS[-(-level * (len(_BARS) - 1) // most)] for level in levels)
    yield "bytes of shards in use over the run, on the busiest node"
    yield f"  {bars}  at most {most:,}"
    yield ""
