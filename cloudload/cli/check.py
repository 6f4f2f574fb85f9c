"""`cloudload check`: check a dataset as cloudload and Streaming would read it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cloudload.cli.command import add_command
from cloudload.cli.engine import add_engine_options, open_engine

if TYPE_CHECKING:
    from cloudload.check.findings import CheckReport, Finding
    from cloudload.cli.command import Commands

_CHECK_EXAMPLE = """\
The exit status is 1 if there is an error. Warnings and notes do not count.

examples:
  cloudload check s3://bucket/mds --split train
  cloudload check s3://bucket/mds --engine ray --address auto
  cloudload check s3://bucket/mds --worker 3/64     one job of an array of 64
"""


def add_check(commands: Commands) -> None:
    add = add_command(
        commands,
        "check",
        _check,
        help="check an MDS dataset as cloudload and Streaming would read it",
        description="Read an MDS dataset's index and shards, and list the problems that cloudload "
        "or MosaicML Streaming would have with it. Nothing is written.",
        epilog=_CHECK_EXAMPLE,
        after_interrupt="Nothing was changed",
    ).add_argument
    add("dataset", metavar="DATASET", help="location of the dataset: a folder or URL")
    add("--split", metavar="NAME", help="check DATASET/NAME")
    text = "column that holds the document (default: text)"
    add("--text-key", default="text", metavar="COLUMN", help=text)
    sample = "shards to read, evenly spread, or all. 0 checks only the index and the objects' sizes"
    add("--sample", type=_sample, default="all", metavar="N", help=f"{sample} (default: all)")
    add("--processes", type=int, metavar="N", help="worker processes (default: one per core)")
    share = "check a share of the shards: I/N, from 0/N to N-1/N; or auto, in an array of jobs"
    add("--worker", metavar="I/N", help=share)
    add_engine_options(add, "groups of shards")
    add("--json", action="store_true", help="print the report as JSON")
    add("--quiet", action="store_true", help="no progress bar; log only warnings")


def _sample(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of shards nor all")
    return int(text)


def _check(options: argparse.Namespace) -> int:
    from cloudload.check import check_dataset

    with open_engine(options) as executor:
        report = check_dataset(
            options.dataset,
            split=options.split,
            text_key=options.text_key,
            sample=options.sample,
            processes=options.processes,
            executor=executor,
            worker=options.worker,
            progress=not options.quiet,
        )
    print(report.to_json() if options.json else _summary(report))
    return 0 if report.is_sound else 1


def _summary(report: CheckReport) -> str:
    from cloudload.check.rules import RULES, SEVERITIES

    totals = dict.fromkeys(SEVERITIES, 0)
    for kind, count in report.counts.items():
        totals[RULES[kind].severity] += count
    verdict = ", ".join(
        f"{count:,} {severity}{'' if count == 1 else 's'}" for severity, count in totals.items()
    )
    lines = [f"{report.dataset}: {verdict}"]
    by_kind: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for finding in report.findings:
        by_kind.setdefault((finding.kind, finding.readers), []).append(finding)
    for (kind, readers), found in by_kind.items():
        who = f", for {' and '.join(readers)}" if readers else ""
        lines.append(f"  {found[0].severity}: {kind}{who}")
        lines += [f"    {_describe(finding)}" for finding in found]
        lines += [f"    {advice}" for advice in dict.fromkeys(each.advice for each in found)]
    for kind, count in report.counts.items():
        if more := count - sum(finding.kind == kind for finding in report.findings):
            lines.append(f"  and {more:,} more of the kind {kind}")
    if "index-missing" not in report.counts:
        lines += [
            f"  shards     {report.shards:,} ({report.shards_read:,} read)",
            f"  samples    {report.samples:,}",
            f"  bytes      {report.stored_bytes:,} ({report.raw_bytes:,} raw)",
            f"  seconds    {report.seconds:.1f}",
        ]
    return "\n".join(lines)


def _describe(finding: Finding) -> str:
    return f"{finding.where}: {finding.what}" if finding.where else finding.what
