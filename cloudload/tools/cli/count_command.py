"""`cloudload count`: count the tokens of a dataset.

Count the tokens of each document in an MDS dataset, and store these lengths in the dataset's
folder, using 2 bytes per document.

To resume an interrupted count, run the same command again. A loader with the same data, tokenizer,
text column, and transform finds the lengths automatically.

examples:
  cloudload count s3://bucket/mds --tokenizer gpt2
  cloudload count s3://bucket/mds --tokenizer gpt2 --sample 1%       an estimate, in seconds
  cloudload count s3://bucket/mds --tokenizer gpt2 --worker 3/64     one job in an array of 64
  cloudload count s3://bucket/mds --tokenizer gpt2 --engine ray --address auto
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given, read_transform
from cloudload.tools.cli.output import escape, print_result

if TYPE_CHECKING:
    from cloudload.tools.count.estimate import CountEstimate
    from cloudload.tools.count.length_report import CountReport, LengthStats, ValueCount

_BAR = 19
_PERCENTILES_PER_LINE = 5
_MOST_VALUES, _MOST_CHARACTERS, _MOST_TITLE_CHARACTERS = 50, 80, 50


def add_count(parser: command.CommandParser) -> None:
    from cloudload.tools.count.count import count_tokens

    add = command.set_up(parser, _count, after_interrupt="Run the same command again to resume")
    names = "dataset tokenizer split text_key tokens_key tokens_dtype transform transform_id "
    names += "on_error tokenizer_backend out by again processes worker"
    add_declared(add, count_tokens, names, processes=command.COUNT)
    command.add_engine_options(add)
    sample = "estimate the tokens from this share of the documents, such as 1%%; write nothing"
    add("--sample", type=parse_share, metavar="SHARE", help=sample)
    png = "also save a histogram of the lengths to FILE (requires matplotlib)"
    add("--png", type=command.path_argument, metavar="FILE", help=png)


def parse_share(text: str) -> float:
    """Parse a share of documents above 0, such as `1%` or `0.01`."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share above 0. Use one such as 1% or 0.01"
        )
    return share


def _count(options: argparse.Namespace) -> int:
    from cloudload.tools.count.count import count_tokens, estimate_tokens

    asked = read_transform(list_given(options, count_tokens))
    if not asked.keys() & {"tokenizer", "tokens_key"}:
        options.parser.error(
            "--tokenizer is missing. Pass --tokenizer, or --tokens-key if the data is token IDs"
        )
    if options.png is not None:
        from cloudload.system import reports

        reports.check_picture(options.png)
        command.check_output_path("--png", options.png, options)
    if options.sample is not None:
        for name in asked.keys() & {"by", "again", "out", "worker"}:
            raise ValueError(f"--{name} requires a full count. Remove --sample")
        asked.pop("processes", None)
        found = estimate_tokens(share=options.sample, **asked)
        _draw(found, options.png)
        print_result(found, describe_estimate, as_json=options.json)
        return 0
    with command.open_engine(options) as executor:
        report = count_tokens(**asked, executor=executor, progress=not options.quiet)
    if report is not None:
        _draw(report, options.png)
        print_result(report, summarize, as_json=options.json)
    return 0


def _draw(found: CountReport | CountEstimate, path: Path | None) -> None:
    if path is None:
        return
    from cloudload.tools.count.length_report import plot_lengths

    name = escape(found.dataset)
    if len(name) > _MOST_TITLE_CHARACTERS:
        name = f"…{name[-_MOST_TITLE_CHARACTERS:]}"
    name = name.replace("$", r"\$")  # matplotlib would start a formula at $
    plot_lengths(found.stats, f"{found.tokens:,} tokens in {name}", path)


def summarize(report: CountReport) -> str:
    """Format a report as text for the terminal."""
    left_out = [
        f"{number:,} {what}"
        for number, what in (
            (report.empty, "empty"),
            (report.filtered, "filtered"),
            (report.failed, "bad"),
        )
        if number
    ]
    more = f" ({', '.join(left_out)} left out)" if left_out else ""
    lines = [
        f"{report.dataset}: {counted(report.tokens, 'token')}",
        f"  documents  {report.documents:,}{more}",
        f"  text       {counted(report.text_bytes, 'byte')}, "
        f"{report.tokens_per_byte:.4f} tokens per byte",
        f"  lengths    {report.lengths} ({counted(report.length_bytes, 'byte')})",
        f"  seconds    {report.seconds:.1f}",
    ]
    if report.by is not None:
        lines += ["", *_describe_values(report.by, report.values)]
    if report.documents:
        lines += ["", *_describe_lengths(report.stats)]
    return "\n".join(lines)


def _describe_values(column: str, values: Sequence[ValueCount]) -> list[str]:
    lines = [f"by {escape(column)}", f"  {'documents':>14}  {'tokens':>18}  {'share':>7}"]
    for each in values[:_MOST_VALUES]:
        name = escape(each.value[:_MOST_CHARACTERS]) or '""'
        lines.append(f"  {each.documents:>14,}  {each.tokens:>18,}  {each.share:>7.2%}  {name}")
    if more := values[_MOST_VALUES:]:
        documents, tokens = (sum(getattr(e, n) for e in more) for n in ("documents", "tokens"))
        share = sum(each.share for each in more)
        lines.append(
            f"  {documents:>14,}  {tokens:>18,}  {share:>7.2%}  ({len(more):,} other values, in "
            "--json)"
        )
    return lines


def describe_estimate(found: CountEstimate) -> str:
    """Format an estimate as text for the terminal."""
    error = "unknown error" if math.isnan(found.error) else f"± {found.error:.2%}, 95% confidence"
    filtered = f", {found.filtered:.1%} filtered out" if found.filtered else ""
    lines = [
        f"{found.dataset}: about {counted(found.tokens, 'token')} ({error})",
        f"  samples    {found.samples:,}, of which {found.samples_read:,} were read{filtered}",
        f"  shards     {found.shards:,}, of which {found.shards_read:,} were read",
        f"  text       {found.tokens_per_byte:.4f} tokens per byte",
    ]
    if found.stats.histogram:
        lines += ["", *_describe_lengths(found.stats)]
    return "\n".join(lines)


def _describe_lengths(stats: LengthStats) -> list[str]:
    most = max(each.documents for each in stats.histogram)
    percentiles = [f"p{name} {length:,}" for name, length in stats.percentiles.items()]
    lines = [
        "tokens per document, without bos and eos",
        f"  mean {stats.mean:,.1f}  longest {stats.longest:,}",
        *(
            "  " + "  ".join(percentiles[start : start + _PERCENTILES_PER_LINE])
            for start in range(0, len(percentiles), _PERCENTILES_PER_LINE)
        ),
        "",
        f"  {'tokens':>21}  {'documents':>14}  {'tokens':>18}",
    ]
    for each in stats.histogram:
        span = f"{each.low:,} to {each.high - 1:,}"
        bar = "█" * -(-each.documents * _BAR // most)
        lines.append(f"  {span:>21}  {each.documents:>14,}  {each.tokens:>18,}  {bar}")
    lines += ["", "documents that fit in one row"]
    lines += [
        f"  seq_len {each.seq_len:>7,}  {each.documents:>7.2%} of documents, "
        f"{each.tokens:>7.2%} of tokens"
        for each in stats.fits
        if each.documents > 0
    ]
    return lines
