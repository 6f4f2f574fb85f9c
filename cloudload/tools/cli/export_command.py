"""`cloudload export`: write the rows of a run as pre-tokenized MDS.

Write the rows of given steps as pre-tokenized MDS, from a state, the data and the tokenizer.

Steps count from 1. Reading starts at the state, so pass the last state saved before the steps, or a
state saved before the first batch. If the run was resumed from that state with other options, use a
state saved after the resume. The output is a dataset with one column, `tokens`, and one
sample per row. The dataset cannot be read until the export is complete.

example:
  cloudload export checkpoint.pt s3://bucket/rows --steps 1:1001
"""

from __future__ import annotations

import argparse
import logging

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_end, print_result
from cloudload.tools.cli.run_options import (
    READING,
    STATE,
    add_data_options,
    open_runs_of,
    parse_steps,
)


def add_export(parser: command.CommandParser) -> None:
    from cloudload.tools.export import export_rows

    add = command.set_up(parser, _export, after_interrupt="To export again, add --overwrite")
    add("states", metavar="STATE", type=command.path_argument, nargs=1, help=STATE)
    add_declared(add, export_rows, "out dtype encoding compression hashes shard_bytes overwrite")
    steps = (
        "steps from A up to, but not including, B (default: from the state to the end of the run)"
    )
    add("--steps", type=parse_steps, metavar="A:B", help=steps)
    batch = "rows per global batch (default: as in the state)"
    add("--global-batch", type=command.whole_number(), metavar="ROWS", help=batch)
    add_data_options(add, f"lengths {READING}")


def _export(options: argparse.Namespace) -> int:
    from cloudload.config import alone
    from cloudload.tools.export import export_rows

    [run], delivery = open_runs_of(options)
    if run.state.get("row_hook"):
        raise ValueError(
            "the run has a row_hook, which a state does not store. Create the loader with it, load "
            "the state, and call cloudload.export_rows(loader, ...)"
        )
    # hide the log of waits for rows, because waits are normal in an export
    logging.getLogger("cloudload.wait").setLevel(logging.WARNING)
    with run.loader(**delivery, **alone(run.global_batch)) as loader:
        if options.steps:
            loader.seek(run.rows_of_step(options.steps[0]).start)
        num_batches = len(options.steps) if options.steps else None
        report = export_rows(loader, num_batches=num_batches, **list_given(options, export_rows))
    print_result(report, report.describe(), as_json=options.json)
    if options.steps and report.batches < len(options.steps):
        print_end(options.steps[report.batches])
    return 0
