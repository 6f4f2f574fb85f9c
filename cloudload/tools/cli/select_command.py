"""`cloudload select`: choose documents of a dataset.

Compile which documents of a dataset to read, as one bit for each, and store the result in the
dataset's folder. A loader reads them with Stream(URL, select="NAME"). The data is not written
again.

A condition compares columns with numbers and strings, as in SQL. It may use and, or, not, in,
is null, and parentheses. If several options say what to select, all of them must keep a document.

examples:
  cloudload select s3://bucket/mds good --where "score >= 3 and lang in ('en', 'de')"
  cloudload select s3://bucket/mds clean --drop-ids contaminated.txt
  cloudload select s3://bucket/mds sampled --keep sampled.parquet     by shard and index
  cloudload select 's3://bucket/topics/*' good --where "score >= 3"   all datasets of a glob
  cloudload select s3://bucket/mds good --where "score >= 3" --worker 3/64
"""

from __future__ import annotations

import argparse

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result


def add_select(parser: command.CommandParser) -> None:
    from cloudload.tools.select.select import select_documents

    add = command.set_up(parser, _select, after_interrupt="Run the same command again to resume")
    names = "dataset name split where keep_ids drop_ids keep drop out again processes worker"
    file = {"metavar": "PATH"}
    add_declared(add, select_documents, names, processes=command.COUNT, keep=file)
    command.add_engine_options(add)


def _select(options: argparse.Namespace) -> int:
    from cloudload.tools.select.select import select_documents

    asked = list_given(options, select_documents)
    with command.open_engine(options) as executor:
        found = select_documents(**asked, executor=executor, progress=not options.quiet)
    if found is not None:
        print_result(found, found.describe(), as_json=options.json)
    return 0
