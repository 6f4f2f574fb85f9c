"""`cloudload convert`: convert raw corpora to MDS shards.

Convert raw corpora to an MDS dataset. The output has the same bytes for any number of processes or
machines.

If a conversion is stopped or killed, run the same command again without --overwrite to resume it.
The input files must have the same names and sizes. With --quiet, no summary is printed.

examples:
  cloudload convert corpus/ 's3://bucket/*.jsonl.zst' s3://bucket/mds --split train --keep source
  cloudload convert corpus/ s3://bucket/mds --tokenizer gpt2     count the tokens, too
  cloudload convert s3://bucket/raw s3://bucket/mds --engine ray --address auto
  cloudload convert s3://bucket/raw s3://bucket/mds --worker 3/64
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given, read_transform
from cloudload.tools.cli.output import escape, print_result

if TYPE_CHECKING:
    from cloudload.tools.convert.conversion_report import ConvertReport
    from cloudload.tools.convert.dry_run import Outline

_MOST_BAD_FILES = _MOST_CAUSES = 5


def add_convert(parser: command.CommandParser) -> None:
    from cloudload.tools.convert import convert_to_mds

    add = command.set_up(
        parser,
        _convert,
        after_interrupt="To resume, run the same command again, without --overwrite",
    )
    names = "inputs out format quoting errors text_key id_key keep split splits compression hashes "
    names += "shard_bytes segment_bytes tokenizer transform transform_id on_error processes worker "
    names += "finish skip_bad rejects overwrite append"
    add_declared(
        add,
        convert_to_mds,
        names,
        inputs={"nargs": "+", "metavar": "INPUT"},
        processes=command.COUNT,
    )
    command.add_engine_options(add)
    show = "print the files found, the segments, and a time estimate; write nothing"
    add("--plan", action="store_true", help=show)
    report = "also write the report to FILE as JSON"
    add("--report", type=command.path_argument, metavar="FILE", help=report)


def _convert(options: argparse.Namespace) -> int:
    from cloudload.tools.convert import convert_to_mds

    asked = list_given(options, convert_to_mds)
    if "=" in asked.get("split", ""):
        asked["splits"] = asked.pop("split")
    if options.plan:
        return _print_outline(asked, options)
    command.check_output_path("--report", options.report, options)
    _check_apart(options)
    with command.open_engine(options) as executor:
        report = convert_to_mds(
            **read_transform(asked), executor=executor, progress=not options.quiet
        )
    if options.report:
        options.report.write_text(report.to_json() + "\n")
    if options.json or not options.quiet:
        print_result(report, _summary, as_json=options.json)
    return 0


def _check_apart(options: argparse.Namespace) -> None:
    """Raise `ValueError` if the report, or redirected output, is a file of an input."""
    from cloudload.tools.convert.output_location import check_file

    written = {"the standard output": "/dev/stdout", "the standard error": "/dev/stderr"}
    files = {what: os.path.realpath(path) for what, path in written.items()}
    if options.report:
        check_file("report (--report)", str(options.report), options.inputs)
    for what, path in files.items():
        if os.path.isfile(path):
            check_file(what, path, options.inputs)


def _print_outline(asked: Mapping[str, Any], options: argparse.Namespace) -> int:
    from cloudload.tools.convert.dry_run import outline_conversion

    names = ("inputs", "format", "split", "segment_bytes")
    outline = outline_conversion(**{name: asked[name] for name in names if name in asked})
    print_result(outline, _describe_outline, as_json=options.json)
    return 0


def _describe_outline(outline: Outline) -> list[str]:
    segments = (
        f"{counted(outline.segments, 'segment')}, the largest of "
        f"{counted(outline.largest_segment_bytes, 'byte')}"
    )
    return [*outline.table, segments, _describe_time(outline)]


def _describe_time(outline: Outline) -> str:
    """Describe the estimated time on one core, and on many cores if that is known to be longer."""
    seconds, least = round(outline.core_seconds), round(outline.largest_segment_seconds)
    if seconds < 1:
        return "less than a second"
    if outline.segments == 1:
        return f"about {seconds:,} s on one core, because a segment is converted by one core"
    more = f"; at least {least:,} s on many cores, because of the largest segment" if least else ""
    return f"about {seconds:,} s on one core{more}"


def _summary(report: ConvertReport) -> str:
    speed = ""
    if report.seconds and not report.resumed_shards:
        read = report.input_bytes if report.added_documents is None else report.added_input_bytes
        speed = f", {(read or 0) / 1e6 / report.seconds:.1f} MB/s"
    added = "" if report.added_documents is None else f", {report.added_documents:,} appended"
    state = "was already complete" if report.already_complete else "is complete"
    if report.rebuilt_shards:
        shards = counted(report.shards, "shard")
        state = f"is complete: rebuilt {report.rebuilt_shards:,} of {shards}"
    if report.unfinished_segments:
        state = f"lacks {report.unfinished_segments:,} of {counted(report.segments, 'segment')}"
    bad = [f"             {escape(record)}" for record in report.bad_records]
    if report.bad > len(bad):
        bad.append(f"             … and {report.bad - len(bad):,} more")
    columns = ", ".join(f"{name}: {encoding}" for name, encoding in report.columns.items())
    lines = [
        f"{report.out} {state}",
        f"  documents  {report.documents:,} ({counted(report.text_bytes, 'byte')} of text){added}",
        f"  left out   {report.empty:,} empty, {report.bad:,} bad",
        *bad,
        *_list_causes(report),
        *_list_hidden(report),
        *_list_worst(report),
        f"  input      {counted(report.files, 'file')}, "
        f"{counted(report.input_bytes, 'byte')}{speed}",
        *_list_skipped(report),
        f"  output     {counted(report.shards, 'shard')}, {counted(report.stored_bytes, 'byte')} "
        f"({report.raw_bytes:,} raw)",
        *_list_splits(report),
        f"  columns    {columns}",
    ]
    if report.tokens is not None:
        lines.append(f"  tokens     {report.tokens:,}")
    return "\n".join(lines)


def _list_skipped(report: ConvertReport) -> list[str]:
    """Return a line with the number of files that were not appended again, if there are any."""
    number = report.skipped_files
    return [f"  skipped    {counted(number, 'file')}, in the dataset already"] if number else []


def _list_hidden(report: ConvertReport) -> list[str]:
    """Return a line about hidden files and folders in the input, if there are any."""
    from cloudload.tools.convert.dry_run import describe_hidden_files

    shown = escape(describe_hidden_files(report.hidden, report.hidden_names))
    return [f"             {shown}"] if report.hidden else []


def _list_splits(report: ConvertReport) -> list[str]:
    """Return a line with the number of documents in each split, if there are splits."""
    parts = [f"{name} {split['documents']:,}" for name, split in report.splits.items()]
    return [f"  splits     {', '.join(parts)} (documents)"] if parts else []


def _list_causes(report: ConvertReport) -> list[str]:
    """Return a line for each cause of bad records, and one for replaced characters, if any."""
    causes = [f"{escape(cause)} ({number:,})" for cause, number in report.causes.items()]
    if more := causes[_MOST_CAUSES:]:
        causes = [*causes[:_MOST_CAUSES], f"fewer of {counted(len(more), 'other cause')}"]
    lines = [f"  because    {cause}" for cause in causes]
    if report.replaced:
        noun = counted(report.replaced, "document")
        lines.append(f"  replaced   characters that are not Unicode, in {noun}")
    return lines


def _list_worst(report: ConvertReport) -> list[str]:
    """Return a line with the files that have the most bad records, if any records are bad."""
    worst = [f"{number:,} in {name}" for name, number in report.bad_files.items()]
    if more := worst[_MOST_BAD_FILES:]:
        worst = [*worst[:_MOST_BAD_FILES], f"fewer in {counted(len(more), 'other file')}"]
    return [f"  bad        {', '.join(worst)}"] if worst else []
