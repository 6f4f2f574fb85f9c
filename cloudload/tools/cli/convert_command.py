"""`cloudload convert`: convert raw corpora to MDS."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from cloudload.tools.cli import command
from cloudload.tools.cli.output import escape, print_json, print_text

if TYPE_CHECKING:
    from cloudload.tools.convert.conversion_report import ConvertReport
    from cloudload.tools.convert.dry_run import Outline

# a copy of `config.choices.INPUT_FORMATS`, which is slow to import; a test compares the two
_NAMES = "auto jsonl json csv tsv parquet arrow webdataset wet mds text lines"
FORMATS = tuple(_NAMES.split())
_MOST_BAD_FILES = _MOST_CAUSES = 5

_CONVERT_EXAMPLE = """\
If a conversion is stopped or killed, run the same command again without --overwrite to resume it.
The input files must have the same names and sizes.

examples:
  cloudload convert corpus/ 's3://bucket/*.jsonl.zst' s3://bucket/mds --split train --keep source
  cloudload convert corpus/ s3://bucket/mds --tokenizer gpt2     count the tokens, too
  cloudload convert s3://bucket/raw s3://bucket/mds --engine ray --address auto
  cloudload convert s3://bucket/raw s3://bucket/mds --worker 3/64
"""


def add_convert(commands: command.Commands) -> None:
    parser = command.add_command(
        commands,
        "convert",
        _convert,
        help="convert raw corpora to MDS shards",
        description="Convert raw corpora to an MDS dataset. The output has the same bytes for any "
        "number of processes or machines.",
        epilog=_CONVERT_EXAMPLE,
        after_interrupt="To resume, run the same command again, without --overwrite",
    )
    add = parser.add_argument
    where = (
        "a local path or URL of a file, folder, or glob, such as hf://datasets/OWNER/NAME/PATH; "
        "the folder of an MDS dataset; hf://OWNER/NAME; or - for stdin"
    )
    add("inputs", nargs="+", metavar="INPUT", help=where)
    add("out", metavar="OUT", help="location of the dataset: a folder or URL")
    _add_input_options(parser)
    split = "write to OUT/NAME, and read this split of hf:// inputs; or NAME=SHARE,... such as "
    split += "train=0.999,val=0.001 to divide the documents by hash into OUT/train and OUT/val"
    add("--split", metavar="NAME", help=split)
    codecs = "zstd, gz, bz2, br or none, optionally with a level, such as zstd:7 (default: zstd)"
    add("--compression", default="zstd", metavar="NAME[:LEVEL]", help=codecs)
    hashes = "hash algorithms for each shard, or none (default: xxh64)"
    add("--hashes", default="xxh64", metavar="NAME,...", help=hashes)
    size = "maximum raw size of a shard that contains several documents (default: 64m)"
    add("--shard-bytes", type=_bytes, default="64m", metavar="SIZE", help=size)
    parts = "stored bytes of input that a process converts as one segment (default: 256m)"
    add("--segment-bytes", type=_bytes, default="256m", metavar="SIZE", help=parts)
    tokens = "also count tokens, as cloudload count does, with this name, folder or tokenizer.json"
    add("--tokenizer", metavar="NAME", help=tokens)
    function = (
        "the transform of the runs that will use the token counts; does not change the shards"
    )
    add("--transform", metavar="MODULE:FUNCTION", help=function)
    add("--transform-id", metavar="ID", help="the transform_id of the run, if it has one")
    on_error = "skip leaves documents out of the count if the transform fails (default: raise)"
    add("--on-error", choices=("raise", "skip"), default="raise", help=on_error)
    add(
        "--processes",
        type=command.whole_number(),
        metavar="N",
        help="worker processes (default: one per core)",
    )
    share = "convert one of N shares of the segments: 0/N to N-1/N, or auto in a job array"
    add("--worker", metavar="I/N", help=share)
    join = (
        "convert nothing; write the index if all segments are finished, or fail and list the "
        "unfinished segments"
    )
    add("--finish", action="store_true", help=join)
    command.add_engine_options(add, "segments")
    show = "print the files found, the segments, and a time estimate; write nothing"
    add("--plan", action="store_true", help=show)
    skip = "leave out and count bad records instead of stopping"
    add("--skip-bad", action="store_true", help=skip)
    lines = "with --skip-bad, write the bad records as JSON Lines to FILE, a path or URL"
    add("--rejects", metavar="FILE", help=lines)
    remove = "first remove the dataset or unfinished conversion at OUT"
    add("--overwrite", action="store_true", help=remove)
    more = "add the documents to the finished dataset at OUT without changing its shards"
    add("--append", action="store_true", help=more)
    add("--quiet", action="store_true", help="no progress bar and no summary; log only warnings")
    add("--json", action="store_true", help="print the report as JSON")
    add(
        "--report",
        type=command.path_argument,
        metavar="FILE",
        help="also write the report to FILE as JSON",
    )


def _add_input_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    form = "format of all inputs (default: set by the file name; text if unknown; jsonl for stdin)"
    add("--format", default="auto", choices=FORMATS, help=form)
    quotes = "none: in CSV and TSV files, quotes are plain text (default: csv)"
    add("--quoting", default="csv", choices=("csv", "none"), help=quotes)
    unicode = "replace: bytes that are not UTF-8, and unpaired surrogates, become U+FFFD (default: "
    unicode += "strict, which makes their records bad)"
    add("--errors", default="strict", choices=("strict", "replace"), help=unicode)
    text = "field that contains the document; with FIELD:json, its value as JSON (default: text)"
    add("--text-key", default="text", metavar="FIELD", help=text)
    identifier = (
        "field that contains the ID; if it is missing, the ID is FILE or FILE:LINE (default: id)"
    )
    add("--id-key", default="id", metavar="FIELD", help=identifier)
    kept = "additional field to keep, also of a folder FIELD=value; may be repeated"
    add("--keep", action="append", default=[], metavar="FIELD[:ENCODING]", help=kept)


def _bytes(text: str) -> int:
    from cloudload.config import checks

    try:
        return checks.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _convert(options: argparse.Namespace) -> int:
    from cloudload.tools.convert import convert_to_mds

    options.splits = None
    if options.split and "=" in options.split:
        options.split, options.splits = None, options.split
    if options.plan:
        return _print_outline(options)
    command.check_output_path("--report", options.report, options)
    _check_apart(options)
    names = "text_key id_key keep format quoting errors split splits shard_bytes segment_bytes "
    names += (
        "processes worker finish skip_bad rejects overwrite append tokenizer transform_id on_error"
    )
    with command.open_engine(options) as executor:
        report = convert_to_mds(
            options.inputs,
            options.out,
            compression=None if options.compression == "none" else options.compression,
            hashes=() if options.hashes == "none" else options.hashes.split(","),
            progress=not options.quiet,
            executor=executor,
            transform=_import_transform(options.transform),
            **{name: getattr(options, name) for name in names.split()},
        )
    if options.report:
        options.report.write_text(report.to_json() + "\n")
    if options.json:
        print_json(report)
    elif not options.quiet:
        print_text(_summary(report))
    return 0


def _check_apart(options: argparse.Namespace) -> None:
    """Raise `ValueError` if the report, or redirected output, is a file of an input."""
    from cloudload.tools.convert.separation import check_file

    written = {"the standard output": "/dev/stdout", "the standard error": "/dev/stderr"}
    files = {what: os.path.realpath(path) for what, path in written.items()}
    if options.report:
        check_file("report (--report)", str(options.report), options.inputs)
    for what, path in files.items():
        if os.path.isfile(path):
            check_file(what, path, options.inputs)


def _print_outline(options: argparse.Namespace) -> int:
    from cloudload.loading import counted
    from cloudload.tools.convert.dry_run import outline_conversion

    names = ("format", "split", "segment_bytes")
    outline = outline_conversion(options.inputs, **{name: getattr(options, name) for name in names})
    if options.json:
        print_json(outline)
        return 0
    print_text("\n".join(outline.table))
    print_text(
        f"{counted(outline.segments, 'segment')}, the largest of "
        f"{counted(outline.largest_segment_bytes, 'byte')}\n{_describe_time(outline)}"
    )
    return 0


def _describe_time(outline: Outline) -> str:
    """Describe the estimated time on one core, and on many cores if that is known to be longer."""
    seconds, least = round(outline.core_seconds), round(outline.largest_segment_seconds)
    if seconds < 1:
        return "less than a second"
    if outline.segments == 1:
        return f"about {seconds:,} s on one core, because a segment is converted by one core"
    more = f"; at least {least:,} s on many cores, because of the largest segment" if least else ""
    return f"about {seconds:,} s on one core{more}"


def _import_transform(name: str | None) -> Any:
    if name is None:
        return None
    from cloudload.tools.provenance.state_run import import_transform  # imports torch

    return import_transform(name)


def _summary(report: ConvertReport) -> str:
    from cloudload.loading import counted

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
    from cloudload.loading import counted

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
    from cloudload.loading import counted

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
    from cloudload.loading import counted

    worst = [f"{number:,} in {name}" for name, number in report.bad_files.items()]
    if more := worst[_MOST_BAD_FILES:]:
        worst = [*worst[:_MOST_BAD_FILES], f"fewer in {counted(len(more), 'other file')}"]
    return [f"  bad        {', '.join(worst)}"] if worst else []
