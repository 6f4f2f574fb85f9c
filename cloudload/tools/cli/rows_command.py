"""`cloudload rows`: show the rows of steps, token by token, as a page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.loader_options import add_loader_options, read_loader_options
from cloudload.tools.cli.output import print_json, print_message, print_text
from cloudload.tools.cli.trace_commands import (
    add_run_options,
    open_runs_of,
    parse_rows,
    parse_steps,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.tools.provenance.state_run import Run

_MOST_ROWS, _ROWS_PER_STEP = 1_024, 8
_EXAMPLE = """\
Steps count from 1. Reading starts at the state, so pass the last state saved before the steps. If
the run was resumed from that state with other options, use a state saved after the resume.
Without a state, the command shows the start of a new run. Describe the run with --data and
--tokenizer, or with --yaml, and pass any other CloudLoader argument with --option. A step then has
8 rows unless you set --global-batch. Open the page in a browser. The page needs no other files.

example:
  cloudload rows checkpoint.pt --steps 81200:81202 --row 0:8 --out rows.html
  cloudload rows --data s3://bucket/mds --tokenizer gpt2 --option seq_len=2048 --steps 1
"""


def add_rows(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "rows",
        _rows,
        help="show the rows of steps, token by token, as an HTML page",
        description="Write an HTML page with the rows of given steps as the model receives them: "
        "tokens, documents, padding, masked labels, and position IDs. Reads the rows from a state "
        "or from the start of a run.",
        epilog=_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    add_run_options(parser, num_states="*")
    add = parser.add_argument
    steps = "steps from A up to, but not including, B; or a single step"
    add("--steps", type=parse_steps, required=True, metavar="A:B", help=steps)
    row = "only these rows of each global batch, from 0 (default: all)"
    add("--row", type=parse_rows, metavar="A:B", help=row)
    add("--mask-edges", action="store_true", help="mask labels as the loader's mask_edges does")
    add_loader_options(parser)
    out = "file to write (default: rows.html)"
    add("--out", type=command.path_argument, default=Path("rows.html"), metavar="FILE", help=out)


@without_start_log()
def _rows(options: argparse.Namespace) -> int:
    from cloudload.loading import counted
    from cloudload.tools.provenance.row_page import render_rows
    from cloudload.tools.provenance.viewed_rows import view_rows

    if not options.json:
        command.check_output_path("--out", options.out, options)
    run, delivery = _open_run(options)
    num_rows = len(options.steps) * len(options.row or range(run.global_batch))
    if not options.json and num_rows > _MOST_ROWS:
        raise ValueError(
            f"a page of {num_rows:,} rows would be too large. Choose at most {_MOST_ROWS:,} with "
            "--steps and --row, or print JSON Lines (--json)"
        )
    viewed = view_rows(run, options.steps, options.row, mask_edges=options.mask_edges, **delivery)
    last_step = 0
    if options.json:
        for row in viewed:
            last_step = row.step
            print_json(row.as_dict(), indent=None)
    else:
        rows = list(viewed)
        last_step = rows[-1].step if rows else 0
        options.out.write_text(render_rows(rows, _describe_steps(options.steps)), "utf-8")
        print_text(f"{options.out} has {counted(len(rows), 'row')}")
    if last_step < options.steps[-1]:
        missing = max(last_step + 1, options.steps.start)
        print_message(f"the data ends before step {missing:,}")
    return 0


def _describe_steps(steps: range) -> str:
    if len(steps) == 1:
        return f"Rows of step {steps.start:,}"
    return f"Rows of steps {steps.start:,} to {steps[-1]:,}"


def _open_run(options: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    if options.states:
        if options.yaml or options.config or options.option:
            raise ValueError(
                "a state was given, so --yaml, --config, and --option have no effect. Omit these "
                "options, or omit the state"
            )
        if len(options.states) > 1:
            raise ValueError(
                f"{len(options.states)} states were given, but rows takes one. Pass the last one "
                "saved before the steps"
            )
        [run], delivery = open_runs_of(options)
        return run, delivery
    from cloudload.tools.provenance.state_run import start_run

    arguments = read_loader_options(options)
    try:
        run = start_run(options.global_batch or _ROWS_PER_STEP, **arguments)
    except TypeError as error:
        raise ValueError(f"--option: {error}") from error
    return run, {"local": arguments.get("local"), "num_workers": options.workers}
