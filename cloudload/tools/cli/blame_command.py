"""`cloudload blame`: find the documents and sources whose losses stand out in some steps."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.output import escape, print_json, print_text, wrap
from cloudload.tools.cli.trace_commands import add_data_options, parse_steps, without_start_log

if TYPE_CHECKING:
    from cloudload.loading import TracedSpan
    from cloudload.tools.losses.blame import Blame, DocumentLoss, Losses, SourceLoss

_SHOWN_CHARACTERS, _INDENT = 300, "    "
_EXAMPLE = """\
LOG is the folder in which cloudload.losses.LossLog saves the losses of all ranks and restarts of a
run. Each document is compared with documents of similar length from the same source and similar
steps. Each source is compared with its own earlier steps. The score measures the difference in
robust standard deviations. The exit status is 1 if nothing stands out.

example:
  cloudload blame losses/ --steps 81200:81240
"""


def add_blame(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "blame",
        _blame,
        help="find the documents and sources with high losses",
        description="Find the documents and sources whose losses stand out in given steps, from "
        "a run's loss log. Reads each of these documents to print its ID, shard, and text.",
        epilog=_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    add = parser.add_argument
    add(
        "logs",
        metavar="LOG",
        type=command.path_argument,
        nargs="+",
        help="folder or file that LossLog wrote",
    )
    steps = "steps from A up to, but not including, B; or a single step (default: all)"
    add("--steps", type=parse_steps, metavar="A:B", help=steps)
    add(
        "--top",
        type=command.whole_number(),
        default=10,
        metavar="N",
        help="documents to print (default: 10)",
    )
    threshold = "the lowest score at which a document or source stands out (default: 6)"
    add("--threshold", type=command.positive_number, default=6.0, metavar="SCORE", help=threshold)
    fewest = "ignore documents with fewer than N tokens in these steps (default: 8)"
    add("--min-tokens", type=command.whole_number(), default=8, metavar="N", help=fewest)
    add(
        "--no-text",
        action="store_true",
        help="do not read the data; print only the stream and sample",
    )
    add_data_options(parser)


@without_start_log()
def _blame(options: argparse.Namespace) -> int:
    from cloudload.tools.losses.blame import blame, read_losses

    losses = read_losses(*options.logs)
    found = blame(
        losses,
        options.steps,
        threshold=options.threshold,
        min_tokens=options.min_tokens,
        top=options.top,
    )
    traced = _trace(losses, found, options)
    if options.json:
        print_json(_list_values(found, traced), indent=None)
    else:
        print_text("\n".join(_describe(found, traced, options.threshold)))
    is_high = any(_stands_out(source, options.threshold) for source in found.sources)
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
    run = open_run(
        losses.state,
        data=options.data,
        tokenizer=options.tokenizer,
        transform=options.transform,
        global_batch=1,
        lengths=options.lengths,
    )
    spans = [
        [index, losses.streams.index(each.stream), each.epoch, each.sample, each.start, each.stop]
        for index, each in enumerate(found.documents)
    ]
    rows = np.array([each.row for each in found.documents])
    return trace_documents(run, np.array(spans), rows, local=options.local, num_workers=0)


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
    from cloudload.loading import counted

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
