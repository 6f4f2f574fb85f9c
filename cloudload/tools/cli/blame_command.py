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
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import escape, print_json, print_text, wrap
from cloudload.tools.cli.run_options import (
    add_data_options,
    list_reading,
    locate_run,
    parse_steps,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan
    from cloudload.tools.losses.blame import Blame, DocumentLoss, Losses, SourceLoss

_SHOWN_CHARACTERS = 300


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
    if options.json:
        print_json(_list_values(found, traced), indent=None)
    else:
        print_text("\n".join(_describe(found, traced, threshold)))
    is_high = any(_stands_out(source, threshold) for source in found.sources)
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


def _name_steps(each: DocumentLoss) -> str:
    if each.step == each.last_step:
        return f"step {each.step:,}"
    return f"steps {each.step:,} to {each.last_step:,}, worst at {each.worst_step:,}"


def _describe(found: Blame, traced: Sequence[TracedSpan | None], threshold: float) -> Iterator[str]:
    yield (
        f"steps {found.steps.start:,} to {found.steps.stop - 1:,}: "
        f"{counted(found.num_documents, 'document')}, {counted(found.tokens, 'token')}, "
        f"mean loss {found.loss:.3f}"
    )
    yield from _describe_sources(found.sources, threshold)
    if not found.documents:
        yield f"\nno document has a score of {threshold:g} or more"
        return
    for each, span in zip(found.documents, traced, strict=True):
        yield (
            f"\nloss {each.loss:.3f}  expected {each.expected:.3f}  score {each.score:.1f}  "
            f"{_name_steps(each)}"
        )
        identifier = "" if span is None or span.id is None else f"  id {escape(str(span.id))}"
        shard = "" if span is None else f"  {escape(span.shard)}"
        yield (
            f"  {escape(each.stream)}{identifier}  sample {each.sample}  epoch {each.epoch}  "
            f"tokens {each.start}:{each.stop}{shard}"
        )
        if span is not None:
            text = escape(json.dumps(span.text[:_SHOWN_CHARACTERS], ensure_ascii=False))
            yield from (
                f"    {line}" for line in wrap(text, shutil.get_terminal_size().columns - 4)
            )


def _describe_sources(sources: Sequence[SourceLoss], threshold: float) -> Iterator[str]:
    width = max(len("source"), *(len(escape(each.stream)) for each in sources))
    yield f"\n{'source':<{width}}  documents       tokens    loss  before   score"
    for each in sources:
        before = "-" if each.before is None else f"{each.before:.3f}"
        score = "-" if each.score is None else f"{each.score:.1f}"
        mark = "  stands out" if _stands_out(each, threshold) else ""
        yield (
            f"{escape(each.stream):<{width}}  {each.documents:>9,}  {each.tokens:>11,}  "
            f"{each.loss:>6.3f}  {before:>6}  {score:>6}{mark}"
        )


def _stands_out(source: SourceLoss, threshold: float) -> bool:
    return source.score is not None and source.score >= threshold
