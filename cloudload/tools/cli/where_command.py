"""`cloudload where`: find the steps that read a document.

Find the steps and rows that read a document: in a saved run, from a state, the data and the
tokenizer; or in a new run, from the arguments of its loader.

Reads every row from the state up to the step --until, so pass the last state saved before the steps
of interest. If options changed when the run resumed from that state, also pass a state saved after
the resume. The exit status is 1 if no step reads the document.

example:
  cloudload where checkpoint.pt --id wiki/10472 --until 90000
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.output import print_message, print_result
from cloudload.tools.cli.run_options import add_run_options, open_runs_of, without_start_log

if TYPE_CHECKING:
    from cloudload.tools.provenance.find_document import Occurrence
    from cloudload.tools.provenance.state_run import Run


def add_where(parser: command.CommandParser) -> None:
    add = command.set_up(parser, _where)
    add_run_options(parser)
    document = parser.add_mutually_exclusive_group(required=True).add_argument
    document("--id", metavar="DOC", help="the document's ID; finding it reads all shards")
    sample = "the document's index N in its stream; STREAM is the stream's index (default: 0)"
    document("--sample", type=_sample, metavar="[STREAM:]N", help=sample)
    last = "the last step to search"
    add("--until", type=command.whole_number(), required=True, metavar="N", help=last)
    quick = "read only the lanes that probably contain the document; may miss steps"
    add("--quick", action="store_true", help=quick)


def _sample(text: str) -> tuple[int, int]:
    stream, _, sample = text.rpartition(":")
    if not sample.isdecimal() or (stream and not stream.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither N nor STREAM:N. Use 7 or 1:7, for example"
        )
    return int(stream or 0), int(sample)


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
        print_result(occurrence, occurrence.describe(), as_json=options.json, indent=None)
    if not is_found:
        until, found = f"{options.until:,}", "was found to read" if options.quick else "reads"
        print_message(f"no step after the state, up to step {until}, {found} the document")
        for stream, sample in samples:
            if reason := explain_absence(runs[-1], stream, sample, **delivery):
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
    for stream, sample in samples:
        for run, own in split_steps(runs, steps):
            # a part before the last may lack a stream that a later part adds
            if stream < len(run.labels) or run.last_step is None:
                yield from find_document(
                    run, stream, sample, own[-1], quick=options.quick, **delivery
                )
