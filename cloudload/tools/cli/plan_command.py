"""`cloudload plan`: forecast the reads, requirements, and cost of a run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudload.tools.cli import command
from cloudload.tools.cli.count_command import parse_share
from cloudload.tools.cli.loader_options import (
    add_loader_options,
    add_world_options,
    read_loader_options,
)
from cloudload.tools.cli.output import escape, print_json, print_text
from cloudload.tools.cli.trace_commands import without_start_log

if TYPE_CHECKING:
    from cloudload.tools.forecast.result import RunPlan

_EXAMPLE = """\
Pass the loader's arguments with --option, --config or --yaml. If the data has token
lengths (see cloudload count), the figures are exact. Otherwise, a sample of documents is tokenized,
and the figures are estimates with error bounds. The time to the first batch and the speed of the
reader are measured on this machine.

examples:
  cloudload plan --data s3://bucket/mds --tokenizer gpt2 --option seq_len=2048 \\
      --option batch_size=8 --tokens 300B --nodes 16 --ranks-per-node 8 --html plan.html
  cloudload plan --config run.yaml --steps 1000
"""
_BARS, _HEIGHT = " ▁▂▃▄▅▆▇█", 60


def add_plan(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "plan",
        _plan,
        help="forecast a run: steps, epochs, cache, downloads, cost, workers",
        description="Forecast a run before it starts: steps and epochs, the cache of each node, "
        "downloads and their cost, the time to the first batch, and the workers needed.",
        epilog=_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    add = parser.add_argument
    data = "location of the data; repeat for each stream"
    add("--data", action="append", metavar="URL", help=data)
    add("--tokenizer", metavar="NAME", help="name, folder or tokenizer.json of the tokenizer")
    add("--transform", metavar="MODULE:FUNCTION", help="the run's transform, if it has one")
    add_loader_options(parser)
    add("--local", metavar="FOLDER", help="folder of the shard cache")
    add("--tokens", metavar="N", help="length of the run in tokens, such as 300B")
    add("--steps", type=command.whole_number(), metavar="N", help="length of the run in steps")
    add_world_options(parser)
    rate = "training speed of one GPU in tokens per second, used to compute the number of workers"
    add("--gpu-tokens-per-s", type=command.positive_number, metavar="N", help=rate)
    prices = "file with a table of prices (default: list prices of S3 and GCS; see the docs)"
    add("--prices", type=command.path_argument, metavar="FILE", help=prices)
    sample = "share of documents to tokenize if there are no token lengths (default: 1%%)"
    add("--sample", type=parse_share, default=0.01, metavar="SHARE", help=sample)
    add("--no-measure", action="store_true", help="do not measure the reader on this machine")
    add("--html", type=command.path_argument, metavar="FILE", help="also write an HTML page")
    add(
        "--png",
        type=command.path_argument,
        metavar="FILE",
        help="also plot cache use over the run (requires matplotlib)",
    )
    add("--json", action="store_true", help="print the plan as JSON")
    add("--quiet", action="store_true", help="log only warnings")


@without_start_log()
def _plan(options: argparse.Namespace) -> int:
    from cloudload.tools.forecast.page import draw_plan, render_plan
    from cloudload.tools.forecast.plan_run import plan_run

    arguments = read_loader_options(options)
    if "batch_size" not in arguments:
        raise ValueError("batch_size is missing. Pass --option batch_size=8, the rows per rank")
    _check_outputs(options)
    plan = plan_run(
        **arguments,
        tokens=options.tokens,
        steps=options.steps,
        nodes=options.nodes,
        ranks_per_node=options.ranks_per_node,
        gpu_tokens_per_s=options.gpu_tokens_per_s,
        prices=options.prices,
        sample=options.sample,
        measure=not options.no_measure,
    )
    if options.png is not None:
        draw_plan(plan, options.png)
    if options.html is not None:
        options.html.write_text(render_plan(plan), "utf-8")
    if options.json:
        print_json(plan)
    else:
        print_text("\n".join(describe_plan(plan)))
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    from cloudload.tools.count.picture import check_picture

    if options.png is not None:
        check_picture(options.png)
    command.check_output_path("--png", options.png, options)
    command.check_output_path("--html", options.html, options)


def describe_plan(plan: RunPlan) -> Iterator[str]:
    """Yield the lines of a plan as text for the terminal."""
    from cloudload.tools.forecast import text_report

    for title, rows in text_report.list_sections(plan):
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
