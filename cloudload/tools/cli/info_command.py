"""`cloudload info`: summarize an MDS dataset.

Summarize an MDS dataset: samples, shards, bytes, columns, compression, hashes, and the sizes of
shards and samples. Nothing is written.

Counts, bytes, columns, compression and hashes come from the index and are exact. The sizes of
samples come from a few shards (--sample). Only the first bytes of these shards are fetched.

example:
  cloudload info s3://bucket/mds --split train
"""

from __future__ import annotations

import argparse

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result


def add_info(parser: command.CommandParser) -> None:
    from cloudload.tools.inspect.info import read_info

    add = command.set_up(parser, _info)
    add_declared(add, read_info, "dataset split sample")


def _info(options: argparse.Namespace) -> int:
    from cloudload.tools.inspect.info import read_info

    info = read_info(**list_given(options, read_info))
    print_result(info, info.describe(), as_json=options.json)
    return 0
