"""The command line: one subcommand per verb of the library, and nothing of its own.

Results go to stdout, progress, logs and errors to stderr. Exit status 1 is an error, 2 a wrong command line, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cloudload
from cloudload.config import parse_bytes
from cloudload.errors import CloudloadError

if TYPE_CHECKING:
    from cloudload.journal import ConvertReport

_CONVERT_EXAMPLE = """\
A run that stopped or was killed goes on when it is run again; it knows its input again by names and sizes.

example:
  cloudload convert corpus/ 's3://bucket/more/*.jsonl.zst' s3://bucket/mds --split train --keep source --processes 8
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING if options.quiet else logging.INFO, format="%(message)s", stream=sys.stderr)
    for library in ("botocore", "boto3", "urllib3", "google", "datasets", "huggingface_hub", "httpx", "fsspec"):
        logging.getLogger(library).setLevel(logging.WARNING)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except BrokenPipeError:
        return 1
    except (CloudloadError, ValueError, OSError) as error:
        print(f"cloudload: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"cloudload: interrupted. {options.after_interrupt}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cloudload",
        description="Feed LLM pretraining from object storage.",
        epilog="example:\n  cloudload convert corpus/ s3://bucket/mds --split train",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cloudload {cloudload.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_convert(commands)
    return parser


# ---------------------------------------------------------------- convert


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "convert",
        help="raw corpora to MDS shards",
        description="Convert raw corpora to an MDS dataset: the same bytes whatever the number of processes.",
        epilog=_CONVERT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="a file, folder or glob, local or in a store; - for stdin; hf://OWNER/NAME")
    add("out", metavar="OUT", help="where the dataset goes: a folder, s3://..., gs://...")
    add("--split", metavar="NAME", help="write below OUT/NAME")
    add(
        "--format",
        default="auto",
        choices=["auto", "jsonl", "parquet", "text", "lines"],
        help="default: by the file's name, else text",
    )
    add("--text-key", default="text", metavar="FIELD", help="the field with the document (default: text)")
    add("--id-key", default="id", metavar="FIELD", help="the field with the id, where there is one; else file:line (default: id)")
    add("--keep", action="append", default=[], metavar="FIELD[:ENCODING]", help="a further field to keep; may be repeated")
    add("--compression", default="zstd", metavar="NAME[:LEVEL]", help="zstd, zstd:7, gz, bz2 or none (default: zstd)")
    add("--hashes", default="xxh64", metavar="NAME,...", help="hashes of each shard, or none (default: xxh64)")
    add("--shard-bytes", type=_bytes, default="64m", metavar="SIZE", help="the most raw bytes of a shard (default: 64m)")
    add("--processes", type=int, metavar="N", help="default: one per core")
    add("--skip-bad", action="store_true", help="count bad records and leave them out, instead of stopping")
    add("--overwrite", action="store_true", help="remove the dataset that OUT holds and start afresh")
    add("--quiet", action="store_true", help="no progress bar, no notes")
    add("--json", action="store_true", help="print the report as JSON")
    add("--report", type=Path, metavar="FILE", help="write the report to FILE as JSON, too")
    parser.set_defaults(run=_convert, after_interrupt="Run the same command again to go on")


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _convert(options: argparse.Namespace) -> int:
    from cloudload.convert import convert_to_mds

    if options.report and not options.report.absolute().parent.is_dir():
        raise ValueError(f"--report {options.report}: there is no folder {options.report.parent}")
    report = convert_to_mds(
        options.inputs,
        options.out,
        text_key=options.text_key,
        id_key=options.id_key,
        keep=options.keep,
        format=options.format,
        split=options.split,
        compression=None if options.compression == "none" else options.compression,
        hashes=() if options.hashes == "none" else options.hashes.split(","),
        shard_bytes=options.shard_bytes,
        processes=options.processes,
        skip_bad=options.skip_bad,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    if options.report:
        options.report.write_text(report.to_json() + "\n")
    print(report.to_json() if options.json else _summary(report))
    return 0


def _summary(report: ConvertReport) -> str:
    speed = f", {report.input_bytes / 1e6 / report.seconds:.1f} MB/s" if report.seconds and not report.resumed_shards else ""
    lines = [
        f"{report.out} {'was complete already' if report.already_complete else 'is complete'}",
        f"  documents  {report.documents:,} ({report.text_bytes:,} bytes of text)",
        f"  left out   {report.empty:,} empty, {report.bad:,} bad",
        *(f"             {record}" for record in report.bad_records),
        f"  input      {report.files:,} files, {report.input_bytes:,} bytes{speed}",
        f"  output     {report.shards:,} shards, {report.stored_bytes:,} bytes ({report.raw_bytes:,} raw)",
        f"  columns    {', '.join(f'{name}: {encoding}' for name, encoding in report.columns.items())}",
    ]
    if report.bad > len(report.bad_records):
        lines.insert(3 + len(report.bad_records), f"             … and {report.bad - len(report.bad_records):,} more")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
