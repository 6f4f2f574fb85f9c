"""`cloudload rows`: show the rows of steps, token by token, as an HTML page.

Write an HTML page with the rows of given steps as the model receives them: tokens, documents,
padding, position IDs, and which tokens are trained. Reads the rows from a state or from the start
of a run.

Steps count from 1. Reading starts at the state, so pass the last state saved before the steps. If
the run was resumed from that state with other options, use a state saved after the resume.
Without a state, the command shows the start of a new run, with the arguments of its loader. A step
then has 8 rows unless you set --global-batch. Open the page in a browser. The page needs no other
files.

examples:
  cloudload rows checkpoint.pt --steps 81200:81202 --row 0:8 --out rows.html
  cloudload rows --data s3://bucket/mds --tokenizer gpt2 --seq-len 2048 --steps 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.output import print_end, print_json, print_lines
from cloudload.tools.cli.run_options import (
    add_row_options,
    add_run_options,
    check_one_state,
    open_runs_of,
    without_start_log,
)

_MOST_ROWS = 1_024


def add_rows(parser: command.CommandParser) -> None:
    add = command.set_up(parser, _rows)
    add_run_options(parser)
    add_row_options(add)
    out = "file to write (default: rows.html)"
    add("--out", type=command.path_argument, default=Path("rows.html"), metavar="FILE", help=out)


@without_start_log()
def _rows(options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.row_page import render_rows
    from cloudload.tools.provenance.viewed_rows import view_rows

    if not options.json:
        command.check_output_path("--out", options.out, options)
    check_one_state(options, "the last one saved before the steps")
    [run], delivery = open_runs_of(options)
    num_rows = len(options.steps) * len(options.row or range(run.global_batch))
    if not options.json and num_rows > _MOST_ROWS:
        raise ValueError(
            f"a page of {num_rows:,} rows would be too large. Choose at most {_MOST_ROWS:,} with "
            "--steps and --row, or print JSON Lines (--json)"
        )
    viewed = view_rows(run, options.steps, options.row, **delivery)
    last_step = 0
    if options.json:
        for row in viewed:
            last_step = row.step
            print_json(row.as_dict(), indent=None)
    else:
        rows = list(viewed)
        last_step = rows[-1].step if rows else 0
        options.out.write_text(render_rows(rows, _describe_steps(options.steps)), "utf-8")
        print_lines([f"{options.out} has {counted(len(rows), 'row')}"])
    if last_step < options.steps[-1]:
        print_end(max(last_step + 1, options.steps.start))
    return 0


def _describe_steps(steps: range) -> str:
    if len(steps) == 1:
        return f"Rows of step {steps.start:,}"
    return f"Rows of steps {steps.start:,} to {steps[-1]:,}"
