"""`cloudload trace` finds the documents of steps, and `cloudload where` the steps of a document."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.output import escape, print_json, print_message, print_text

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan
    from cloudload.tools.provenance.find_document import Occurrence
    from cloudload.tools.provenance.state_run import Run


_START_LOGGERS = tuple(f"cloudload.{name}" for name in ("start", "wait", "tokenizer", "lengths"))
_SHOWN_CHARACTERS = 160
_TRACE_EXAMPLE = """\
Steps count from 1. Reading starts at the state, so pass the last state saved before the steps. If
you need a few steps of an endless run, --row with a single row is much faster, because the command
then reads only a small part of the data for each step.

If the run was resumed from that state with a different seq_len, mixture, or other option, also pass
a state saved after the resume, because it contains the new options. Steps between two states are
read from the earlier state with the options of the later state.

example:
  cloudload trace checkpoint.pt --steps 81200:81205 --row 3
  cloudload trace before.pt after.pt --steps 81200:81205
"""
_WHERE_EXAMPLE = """\
Reads every row from the state up to the step --until, so pass the last state saved before the steps
of interest. If options changed when the run resumed from that state, also pass a state saved after
the resume. The exit status is 1 if no step reads the document.

example:
  cloudload where checkpoint.pt --id wiki/10472 --until 90000
"""


def add_trace(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "trace",
        _trace,
        help="list the documents that steps read",
        description="List the documents in the rows of given steps, from a state, the data and the "
        "tokenizer.",
        epilog=_TRACE_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    add_run_options(parser, num_states="+")
    add = parser.add_argument
    steps = "steps from A up to, but not including, B; or a single step"
    add("--steps", type=parse_steps, required=True, metavar="A:B", help=steps)
    row = "only rows A up to, but not including, B of each global batch, from 0; or a single row"
    add("--row", type=parse_rows, metavar="A:B", help=row)
    add("--full", action="store_true", help="print the full text, not only its beginning")


def add_where(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "where",
        _where,
        help="find the steps that read a document",
        description="Find the steps and rows that read a document, from a state, the data and the "
        "tokenizer.",
        epilog=_WHERE_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    add_run_options(parser, num_states="+")
    document = parser.add_mutually_exclusive_group(required=True).add_argument
    document("--id", metavar="DOC", help="the document's ID; finding it reads all shards")
    number = "the document's index N in its stream; STREAM is the stream's index (default: 0)"
    document("--sample", type=_sample, metavar="[STREAM:]N", help=number)
    last = "the last step to search"
    parser.add_argument(
        "--until", type=command.whole_number(), required=True, metavar="N", help=last
    )
    quick = "read only the lanes that probably contain the document; may miss steps"
    parser.add_argument("--quick", action="store_true", help=quick)


def add_run_options(parser: argparse.ArgumentParser, *, num_states: str | int = 1) -> None:
    """Add the states, and the options that locate and read the run's data and tokenizer.

    `num_states` is passed to argparse as `nargs` of the states.
    """
    add = parser.add_argument
    state = "a checkpoint that contains a loader state: a JSON file, a torch file, or a folder"
    if num_states == "+":
        state += "; also pass later checkpoints of the run if its options changed"
    add("states", metavar="STATE", type=command.path_argument, nargs=num_states, help=state)
    batch = "rows per global batch (default: as in the state)"
    add("--global-batch", type=command.whole_number(), metavar="ROWS", help=batch)
    add(
        "--workers",
        type=command.whole_number(least=0),
        default=2,
        metavar="N",
        help="worker processes (default: 2)",
    )
    add_data_options(parser)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that locate a run's data and tokenizer, and the output options."""
    add = parser.add_argument
    data = "new location of the data, if it has moved; repeat for each stream, in order"
    add("--data", action="append", metavar="URL", help=data)
    tokenizer = "the tokenizer, if it has moved or the state does not record it"
    add("--tokenizer", metavar="NAME", help=tokenizer)
    add("--transform", metavar="MODULE:FUNCTION", help="the run's transform, if it had one")
    lengths = "folder or URL of the token lengths, if they are not in the data's folder"
    add("--lengths", metavar="URL", help=lengths)
    add("--local", metavar="FOLDER", help="folder of the shard cache")
    add("--json", action="store_true", help="print JSON Lines")
    add("--quiet", action="store_true", help="log only warnings")


def parse_steps(text: str) -> range:
    """Parse `A:B`, which excludes B, or a single step."""
    return _parse_range(text, "step")


def parse_rows(text: str) -> range:
    """Parse `A:B`, which excludes B, or a single row."""
    return _parse_range(text, "row")


def _parse_range(text: str, noun: str) -> range:
    first, colon, stop = text.partition(":")
    try:
        found = range(int(first), int(stop) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither A:B nor a single {noun}. Use 3:5 or 3, for example"
        ) from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no {noun}s. In A:B, use a B above A")
    return found


def _sample(text: str) -> tuple[int, int]:
    stream, _, number = text.rpartition(":")
    if not number.isdecimal() or (stream and not stream.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither N nor STREAM:N. Use 7 or 1:7, for example"
        )
    return int(stream or 0), int(number)


@contextmanager
def without_start_log() -> Iterator[None]:
    """Hide what loaders log when they start, except for warnings, to keep the output short."""
    loggers = [logging.getLogger(name) for name in _START_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def open_runs_of(
    options: argparse.Namespace,
) -> tuple[list[Run], dict[str, Any]]:
    """Open the parts of the run that `options` name. Also return the loader's delivery options."""
    from cloudload.tools.provenance.checkpoint import load_state
    from cloudload.tools.provenance.state_run import open_runs

    runs = open_runs(
        [load_state(path) for path in options.states],
        data=options.data,
        tokenizer=options.tokenizer,
        transform=options.transform,
        global_batch=options.global_batch,
        lengths=options.lengths,
    )
    return runs, {"local": options.local, "num_workers": options.workers}


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
        missing = options.steps.start + num_steps
        print_message(f"the data ends before step {missing:,}")
    return 0


def _print_span(step: int, row: int, span: TracedSpan, options: argparse.Namespace) -> None:
    if options.json:
        print_json({"step": step, **span.as_dict(), "row": row}, indent=None)
        return
    text = span.text
    if not options.full:
        text = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False)
    head = (
        f"step {step:,}  row {row}  {span.stream}  epoch {span.epoch}  id {span.id}  {span.shard}  "
        f"sample {span.sample}  tokens {span.start}:{span.stop}"
    )
    print_text(f"{escape(head)}\n    {text}")


@without_start_log()
def _where(options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.find_document import explain_absence, find_samples

    runs, delivery = open_runs_of(options)
    if options.sample is not None:
        samples = [options.sample]
    else:
        samples = find_samples(runs[-1], options.id, **delivery)
    is_found = False
    for occurrence in _find(runs, samples, options, delivery):
        is_found = True
        if options.json:
            print_json(occurrence, indent=None)
        else:
            print_text(escape(_describe_occurrence(occurrence)))
    if not is_found:
        until, found = f"{options.until:,}", "was found to read" if options.quick else "reads"
        print_message(f"no step after the state, up to step {until}, {found} the document")
        for stream, number in samples:
            if reason := explain_absence(runs[-1], stream, number, **delivery):
                print_message(reason)
    return 0 if is_found else 1


def _find(
    runs: list[Run],
    samples: list[tuple[int, int]],
    options: argparse.Namespace,
    delivery: Mapping[str, Any],
) -> Iterator[Occurrence]:
    from cloudload.tools.provenance.find_document import find_document
    from cloudload.tools.provenance.state_run import split_steps

    first = runs[0].saved.position.batches + 1
    steps = range(min(first, options.until), options.until + 1)
    for stream, number in samples:
        for run, own in split_steps(runs, steps):
            # a part before the last may lack a stream that a later part adds
            if stream < len(run.labels) or run.last_step is None:
                yield from find_document(
                    run, stream, number, own[-1], quick=options.quick, **delivery
                )


def _describe_occurrence(found: Occurrence) -> str:
    return (
        f"step {found.step:,}  row {found.row}  {found.stream}  epoch {found.epoch}  "
        f"sample {found.sample}  tokens {found.start}:{found.stop}"
    )
