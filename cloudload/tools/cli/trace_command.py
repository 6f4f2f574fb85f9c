"""`cloudload trace`: list the documents that steps read.

List the documents in the rows of given steps: of a saved run, from a state, the data and the
tokenizer; or of a new run, from the arguments of its loader.

Steps count from 1. Reading starts at the state, so pass the last state saved before the steps. If
you need a few steps of an endless run, --row with a single row is much faster, because the command
then reads only a small part of the data for each step.

If the run was resumed from that state with a different seq_len, mixture, or other option, also pass
a state saved after the resume, because it contains the new options. Steps between two states are
read from the earlier state with the options of the later state.

examples:
  cloudload trace checkpoint.pt --steps 81200:81205 --row 3
  cloudload trace before.pt after.pt --steps 81200:81205
  cloudload trace --data s3://bucket/mds --tokenizer gpt2 --seq-len 2048 --steps 1
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from cloudload.system import terminal
from cloudload.tools.cli import command
from cloudload.tools.cli.output import print_end, print_result
from cloudload.tools.cli.run_options import (
    add_row_options,
    add_run_options,
    open_runs_of,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan

_SHOWN_CHARACTERS = 160


def add_trace(parser: command.CommandParser) -> None:
    add = command.set_up(parser, _trace)
    add_run_options(parser)
    add_row_options(add)
    add("--full", action="store_true", help="print the full text, not only its beginning")


@without_start_log()
def _trace(options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.state_run import split_steps
    from cloudload.tools.provenance.viewed_rows import trace_steps

    runs, delivery = open_runs_of(options)
    num_steps = 0
    for run, steps in split_steps(runs, options.steps):
        for step, spans in trace_steps(run, steps, options.row, **delivery):
            num_steps += 1
            first_row = run.rows_of_step(step).start
            for span in spans:
                _print_span(step, span.row - first_row, span, options)
    if num_steps < len(options.steps):
        print_end(options.steps.start + num_steps)
    return 0


def _print_span(step: int, row: int, span: TracedSpan, options: argparse.Namespace) -> None:
    text = span.text
    if not options.full:
        text = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False)
    head = (
        f"step {step:,}  row {row}  {span.stream}  epoch {span.epoch}  id {span.id}  {span.shard}  "
        f"sample {span.sample}  tokens {span.start}:{span.stop}"
    )
    lines = [head, *terminal.escape_lines(f"    {text}")]
    found = {"step": step, **span.as_dict(), "row": row}
    print_result(found, lines, as_json=options.json, indent=None)
