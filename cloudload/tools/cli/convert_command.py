"""`cloudload convert`: convert raw corpora to MDS shards.

Convert raw corpora to an MDS dataset. The output has the same bytes for any number of processes or
machines.

If a conversion is stopped or killed, run the same command again without --overwrite to resume it.
The input files must have the same names and sizes. With --quiet, no summary is printed.

examples:
  cloudload convert corpus/ 's3://bucket/*.jsonl.zst' s3://bucket/mds --split train --keep source
  cloudload convert corpus/ s3://bucket/mds --tokenizer gpt2     count the tokens, too
  cloudload convert s3://bucket/raw s3://bucket/mds --engine ray --address auto
  cloudload convert s3://bucket/raw s3://bucket/mds --worker 3/64
  cloudload convert https://host out --inputs-from https://host/files.paths.gz
  cloudload convert --like s3://bucket/parquet-index s3://bucket/mds
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given, read_functions
from cloudload.tools.cli.output import print_result


def add_convert(parser: command.CommandParser) -> None:
    from cloudload.tools.convert import convert_to_mds

    add = command.set_up(
        parser,
        _convert,
        after_interrupt="To resume, run the same command again, without --overwrite",
    )
    names = "inputs out inputs_from like format quoting errors text_key tokens_key all_columns "
    names += "id_key keep partition_by split splits compression hashes shard_bytes segment_bytes "
    names += "tokenizer transform transform_id chat on_error processes worker finish skip_bad "
    names += "rejects overwrite append"
    add_declared(
        add,
        convert_to_mds,
        names,
        inputs={"nargs": "*", "metavar": "INPUT"},
        processes=command.COUNT,
    )
    command.add_engine_options(add)
    show = "print the files found, the segments, and a time estimate; write nothing"
    add("--plan", action="store_true", help=show)
    report = "also write the report to FILE as JSON"
    add("--report", type=command.path_argument, metavar="FILE", help=report)


def _convert(options: argparse.Namespace) -> int:
    from cloudload.tools.convert import convert_to_mds

    asked = list_given(options, convert_to_mds)
    if "=" in asked.get("split", ""):
        asked["splits"] = asked.pop("split")
    if options.plan:
        return _print_outline(asked, options)
    command.check_output_path("--report", options.report, options)
    _check_apart(options)
    with command.open_engine(options) as executor:
        report = convert_to_mds(
            **read_functions(asked), executor=executor, progress=not options.quiet
        )
    if options.report:
        options.report.write_text(report.to_json() + "\n")
    if options.json or not options.quiet:
        print_result(report, report.describe(), as_json=options.json)
    return 0


def _check_apart(options: argparse.Namespace) -> None:
    """Raise `ValueError` if the report, or redirected output, is a file of an input."""
    from cloudload.tools.convert.output_location import check_file

    inputs = [*options.inputs, *([options.like] if "like" in options else [])]
    written = {"the standard output": "/dev/stdout", "the standard error": "/dev/stderr"}
    files = {what: os.path.realpath(path) for what, path in written.items()}
    if options.report:
        check_file("report (--report)", str(options.report), inputs)
    for what, path in files.items():
        if os.path.isfile(path):
            check_file(what, path, inputs)


def _print_outline(asked: Mapping[str, Any], options: argparse.Namespace) -> int:
    from cloudload.tools.convert.dry_run import outline_conversion

    names = "inputs inputs_from like text_key tokens_key all_columns format split partition_by "
    names += "segment_bytes"
    given = {name: asked[name] for name in names.split() if name in asked}
    outline = outline_conversion(**given)
    print_result(outline, outline.describe(), as_json=options.json)
    return 0
