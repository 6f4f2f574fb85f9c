"""`cloudload index`: write an index of Parquet or JSON Lines files.

Write an index of Parquet or JSON Lines files to a folder, which a loader then reads like an MDS
dataset.

JSON Lines files are read once, to count their lines, so a loader needs the index. A loader also
reads Parquet files without this command, but then each node reads the footers of all files when a
run starts. With an index, a node sends one request, and files that are added later change nothing.

examples:
  cloudload index 's3://bucket/dclm/*.jsonl.zst' s3://bucket/dclm-index --text-key text
  cloudload index 's3://bucket/dclm/*.jsonl.zst' s3://bucket/dclm-index --engine ray
  cloudload index 's3://bucket/corpus/*.parquet' s3://bucket/corpus-index --text-key content
  cloudload index s3://bucket/chats s3://bucket/chats-index --all-columns
"""

from __future__ import annotations

import argparse

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result


def add_index(parser: command.CommandParser) -> None:
    from cloudload.tools.convert.index_files import index_files

    add = command.set_up(parser, _index)
    names = "data out split text_key tokens_key all_columns processes"
    add_declared(add, index_files, names, processes=command.COUNT)
    command.add_engine_options(add)


def _index(options: argparse.Namespace) -> int:
    from cloudload.tools.convert.index_files import index_files

    with command.open_engine(options) as executor:
        report = index_files(
            **list_given(options, index_files), executor=executor, progress=not options.quiet
        )
    print_result(report, report.describe(), as_json=options.json)
    return 0
