"""`cloudload blame`: find the documents and sources with high losses.

Find the documents and sources whose losses stand out in given steps, from a run's loss log. Reads
each of these documents to print its ID, shard, and text.

LOG is the folder in which cloudload.losses.LossLog saves the losses of all ranks and restarts of a
run. Each document is compared with documents of similar length from the same source and similar
steps. Each source is compared with its own earlier steps. The score measures the difference in
robust standard deviations. The exit status is 1 if nothing stands out.

example:
  cloudload blame losses/ --steps 81200:81240
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result
from cloudload.tools.cli.run_options import (
    add_data_options,
    list_reading,
    locate_run,
    parse_steps,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan
    from cloudload.tools.losses.blame import Blame, Losses


def add_blame(parser: command.CommandParser) -> None:
    from cloudload.tools.losses.blame import blame

    add = command.set_up(parser, _blame)
    logs = "folder or file that LossLog wrote"
    add("logs", metavar="LOG", type=command.path_argument, nargs="+", help=logs)
    steps = {"type": parse_steps, "metavar": "A:B"}
    add_declared(add, blame, "steps top threshold min_tokens", steps=steps)
    unread = "do not read the data; print only the stream and sample"
    add("--no-text", action="store_true", help=unread)
    add_data_options(add)


@without_start_log()
def _blame(options: argparse.Namespace) -> int:
    from cloudload.tools.losses.blame import THRESHOLD, blame, read_losses

    losses, threshold = read_losses(*options.logs), getattr(options, "threshold", THRESHOLD)
    found = blame(losses, **list_given(options, blame))
    traced = _trace(losses, found, options)
    lines = found.describe(traced, threshold, shutil.get_terminal_size().columns)
    print_result(_list_values(found, traced), lines, as_json=options.json, indent=None)
    is_high = any(source.stands_out(threshold) for source in found.sources)
    return 0 if found.documents or is_high else 1


def _trace(
    losses: Losses, found: Blame, options: argparse.Namespace
) -> Sequence[TracedSpan | None]:
    """Read the documents that stand out. Each is None with --no-text or without a state."""
    import numpy as np

    from cloudload.tools.provenance.state_run import open_run
    from cloudload.tools.provenance.viewed_rows import trace_documents

    if options.no_text or losses.state is None or not found.documents:
        return [None] * len(found.documents)
    run = open_run(losses.state, **locate_run(options), global_batch=1)
    spans = [
        [index, losses.streams.index(each.stream), each.epoch, each.sample, each.start, each.stop]
        for index, each in enumerate(found.documents)
    ]
    rows = np.array([each.row for each in found.documents])
    return trace_documents(run, np.array(spans), rows, num_workers=0, **list_reading(vars(options)))


def _list_values(found: Blame, traced: Sequence[TracedSpan | None]) -> dict[str, Any]:
    values = found.as_dict()
    values["documents"] = [
        {**asdict(each), **_describe_span(span)}
        for each, span in zip(found.documents, traced, strict=True)
    ]
    return values


def _describe_span(span: TracedSpan | None) -> dict[str, Any]:
    return {} if span is None else {"id": span.id, "shard": span.shard, "text": span.text}
