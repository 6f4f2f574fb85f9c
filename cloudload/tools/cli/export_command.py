"""`cloudload export`: write the rows of a run as pre-tokenized MDS."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from cloudload.tools.cli import command
from cloudload.tools.cli.output import print_json, print_message, print_text
from cloudload.tools.cli.trace_commands import add_run_options, open_runs_of, parse_steps

if TYPE_CHECKING:
    from cloudload.tools.export import ExportReport

_EXAMPLE = """\
Steps count from 1. Reading starts at the state, so pass the last state saved before the steps, or a
state saved before the first batch. If the run was resumed from that state with other options, use a
state saved after the resume. The output is a dataset with one column, `tokens`, and one
sample per row. The dataset cannot be read until the export is complete.

example:
  cloudload export checkpoint.pt s3://bucket/rows --steps 1:1001
"""


def add_export(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "export",
        _export,
        help="write the rows of a run as pre-tokenized MDS",
        description="Write the rows of given steps as pre-tokenized MDS, from a state, the data "
        "and the tokenizer.",
        epilog=_EXAMPLE,
        after_interrupt="To export again, add --overwrite",
    )
    add_run_options(parser)
    add = parser.add_argument
    add("out", metavar="OUT", help="folder or URL of the dataset to write")
    steps = (
        "steps from A up to, but not including, B (default: from the state to the end of the run)"
    )
    add("--steps", type=parse_steps, metavar="A:B", help=steps)
    dtype = "dtype of the token IDs (default: uint16 if all IDs fit, else int32; int64 for bytes)"
    add("--dtype", default="auto", metavar="DTYPE", help=dtype)
    encoding = "encoding of the column: ndarray (default), or bytes for old versions of llm-foundry"
    add("--encoding", choices=["ndarray", "bytes"], default="ndarray", help=encoding)
    compression = "zstd (default), gz, bz2 or br, optionally with :LEVEL; or none"
    add("--compression", default="zstd", metavar="NAME", help=compression)
    add("--overwrite", action="store_true", help="replace the dataset at OUT")


def _export(options: argparse.Namespace) -> int:
    from cloudload.tools.export import export_rows

    [run], delivery = open_runs_of(options)
    # hide the log of waits for rows, because waits are normal in an export
    logging.getLogger("cloudload.wait").setLevel(logging.WARNING)
    with run.loader(batch_size=run.global_batch, dp_rank=0, dp_world_size=1, **delivery) as loader:
        if options.steps:
            loader.seek(run.rows_of_step(options.steps[0]).start)
        report = export_rows(
            loader,
            options.out,
            num_batches=len(options.steps) if options.steps else None,
            dtype=options.dtype,
            encoding=options.encoding,
            compression=None if options.compression == "none" else options.compression,
            overwrite=options.overwrite,
        )
    if options.json:
        print_json(report)
    else:
        print_text(_summary(report))
    if options.steps and report.batches < len(options.steps):
        missing = options.steps[report.batches]
        print_message(f"the data ends before step {missing:,}")
    return 0


def _summary(report: ExportReport) -> str:
    from cloudload.loading import counted

    lines = [
        f"{report.out} is complete",
        f"  rows       {report.rows:,} ({counted(report.tokens, 'token')}; "
        f"{counted(report.padded, 'row')} had padding)",
        f"  output     {counted(report.shards, 'shard')}, {counted(report.stored_bytes, 'byte')} "
        f"({report.raw_bytes:,} raw)",
        f"  columns    tokens: {report.encoding} ({report.dtype})",
    ]
    return "\n".join(lines)
