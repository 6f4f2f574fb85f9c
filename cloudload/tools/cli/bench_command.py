"""`cloudload bench`: measure the speed of a loader alone, and what limits it.

Read a loader's batches as fast as they come, without a training loop: the time to the first batch,
tokens per second, milliseconds per batch, CPU use, and what limits the speed.

The loader has all options of the run and starts at its beginning, on one rank. A warm-up of a
second or more is not counted. The shards come from the run's cache. To measure a first start, pass
an empty folder as --local. If the result is faster than training, the GPU does not wait for data.

examples:
  cloudload bench --data s3://bucket/mds --tokenizer gpt2 --seq-len 2048 --batch-size 8
  cloudload bench --config run.yaml --num-workers 2 --seconds 30
  cloudload bench --data synthetic: --seq-len 2048 --batch-size 8
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


def add_bench(parser: command.CommandParser) -> None:
    from cloudload.tools.bench import measure_loader

    add_declared(command.set_up(parser, _bench), measure_loader, "seconds steps ranks")
    add_loader_options(parser)


@without_start_log()
def _bench(options: argparse.Namespace) -> int:
    from cloudload.tools.bench import measure_loader

    arguments = read_loader_options(options)
    speed = measure_loader(**{**list_given(options, measure_loader), **arguments})
    print_result(speed.as_dict(), speed.describe(), as_json=options.json)
    return 0
