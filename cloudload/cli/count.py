"""`cloudload count`: count the tokens of a dataset, and keep the length of each document."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cloudload.cli.command import add_command

if TYPE_CHECKING:
    from cloudload.cli.command import Commands
    from cloudload.count.report import CountReport, LengthStats

_COUNT_EXAMPLE = """\
Run it again to resume. A loader with this data, tokenizer, text column and transform finds the
lengths by itself.

examples:
  cloudload count s3://bucket/mds --tokenizer gpt2
  cloudload count s3://bucket/mds --tokenizer gpt2 --worker 3/64     one job of an array of 64
"""
_BAR = 40


def add_count(commands: Commands) -> None:
    add = add_command(
        commands,
        "count",
        _count,
        help="count the tokens of a dataset",
        description="Count the tokens of each document of an MDS dataset, and keep the lengths "
        "beside it, at 2 bytes a document.",
        epilog=_COUNT_EXAMPLE,
        after_interrupt="Run the same command again to resume",
    ).add_argument
    add("dataset", metavar="DATASET", help="location of the dataset: a folder or URL")
    add("--tokenizer", metavar="NAME", help="name, folder or tokenizer.json of the tokenizer")
    add("--split", metavar="NAME", help="count DATASET/NAME")
    text = "column that holds the document (default: text)"
    add("--text-key", default="text", metavar="COLUMN", help=text)
    tokens = "column that holds the document as token IDs, for pre-tokenized data"
    add("--tokens-key", metavar="COLUMN", help=tokens)
    add("--tokens-dtype", metavar="DTYPE", help="dtype of the IDs, if that column holds bytes")
    add("--transform", metavar="MODULE:FUNCTION", help="the transform of the run, if it has one")
    add("--transform-id", metavar="ID", help="the transform_id of the run, if it has one")
    out = "where the lengths are kept (default: DATASET/lengths)"
    add("--out", metavar="URL", help=out)
    add("--processes", type=int, metavar="N", help="worker processes (default: one per core)")
    worker = "count every N-th group, as job I of N (from 0), or take both from the environment"
    add("--worker", metavar="I/N|auto", help=worker)
    add("--json", action="store_true", help="print the report as JSON")
    add("--quiet", action="store_true", help="no progress bar; log only warnings")


def _count(options: argparse.Namespace) -> int:
    from cloudload.count import count_tokens
    from cloudload.provenance.state_run import import_transform

    report = count_tokens(
        options.dataset,
        tokenizer=options.tokenizer,
        split=options.split,
        text_key=options.text_key,
        tokens_key=options.tokens_key,
        tokens_dtype=options.tokens_dtype,
        transform=options.transform and import_transform(options.transform),
        transform_id=options.transform_id,
        out=options.out,
        processes=options.processes,
        worker=options.worker,
        progress=not options.quiet,
    )
    if report is not None:
        print(report.to_json() if options.json else summarize(report))
    return 0


def summarize(report: CountReport) -> str:
    """The report as text."""
    left_out = [
        f"{number:,} {what}"
        for number, what in ((report.empty, "empty"), (report.filtered, "filtered"))
        if number
    ]
    more = f" ({', '.join(left_out)} left out)" if left_out else ""
    lines = [
        f"{report.dataset}: {report.tokens:,} tokens",
        f"  documents  {report.documents:,}{more}",
        f"  text       {report.text_bytes:,} bytes, {report.tokens_per_byte:.4f} tokens per byte",
        f"  lengths    {report.lengths} ({report.length_bytes:,} bytes)",
        f"  seconds    {report.seconds:.1f}",
    ]
    if report.documents:
        lines += ["", *_describe_lengths(report.stats)]
    return "\n".join(lines)


def _describe_lengths(stats: LengthStats) -> list[str]:
    most = max(each.documents for each in stats.histogram)
    percentiles = "  ".join(f"p{name} {length:,}" for name, length in stats.percentiles.items())
    lines = [
        "tokens per document, without bos and eos",
        f"  mean {stats.mean:,.1f}  {percentiles}  longest {stats.longest:,}",
        "",
        f"  {'tokens':>21}  {'documents':>14}  {'tokens':>18}",
    ]
    for each in stats.histogram:
        place = f"{each.low:,} to {each.high - 1:,}"
        bar = "█" * -(-each.documents * _BAR // most)
        lines.append(f"  {place:>21}  {each.documents:>14,}  {each.tokens:>18,}  {bar}")
    lines += ["", "documents that fit in one row"]
    lines += [
        f"  seq_len {each.seq_len:>7,}  {each.documents:>7.2%} of documents, "
        f"{each.tokens:>7.2%} of tokens"
        for each in stats.fits
        if each.documents > 0
    ]
    return lines
