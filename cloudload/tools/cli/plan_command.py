"""`cloudload plan`: forecast a run: steps, epochs, cache, downloads, workers.

Forecast a run before it starts: steps and epochs, the cache of each node, downloads, the time to
the first batch, and the workers needed.

If the data has token lengths (see cloudload count), the figures are exact. Otherwise, a sample of
documents is tokenized, and the figures are estimates with error bounds. The time to the first batch
and the speed of the reader are measured on this machine.

examples:
  cloudload plan --data s3://bucket/mds --tokenizer gpt2 --seq-len 2048 --batch-size 8 \\
      --tokens 300B --nodes 16 --ranks-per-node 8
  cloudload plan --config run.yaml --steps 1000
"""

from __future__ import annotations

import argparse

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result
from cloudload.tools.cli.run_options import (
    add_loader_options,
    read_loader_options,
    without_start_log,
)


def add_plan(parser: command.CommandParser) -> None:
    from cloudload.tools.forecast.plan_run import plan_run

    add_declared(
        command.set_up(parser, _plan),
        plan_run,
        "tokens steps nodes ranks_per_node gpu_tokens_per_s sample measure",
        tokens={"type": str},
        sample={"type": command.parse_share, "metavar": "SHARE"},
    )
    add_loader_options(parser)


@without_start_log()
def _plan(options: argparse.Namespace) -> int:
    from cloudload.tools.forecast.plan_report import describe_plan
    from cloudload.tools.forecast.plan_run import plan_run

    arguments = read_loader_options(options)
    plan = plan_run(**{**list_given(options, plan_run), **arguments})
    print_result(plan, describe_plan(plan), as_json=options.json)
    return 0
