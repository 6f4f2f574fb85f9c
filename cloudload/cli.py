"""The command line: one subcommand per verb of the library, and nothing of its own.

Results go to stdout, progress, logs and errors to stderr. Exit status 1 is an error, 2 a wrong
command line, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudload._version import __version__
from cloudload.config import parse_bytes
from cloudload.errors import CloudloadError

if TYPE_CHECKING:
    from cloudload.convert.journal import ConvertReport
    from cloudload.provenance import Run

_SHOWN_CHARACTERS = 160

_CONVERT_EXAMPLE = """\
A run that stopped or was killed goes on when it is run again; it knows its input again by names and sizes.

example:
  cloudload convert corpus/ 's3://bucket/more/*.jsonl.zst' s3://bucket/mds --split train --keep source --processes 8
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO,
        format="%(message)s",
        stream=sys.stderr,
    )
    for library in (
        "botocore",
        "boto3",
        "urllib3",
        "google",
        "datasets",
        "huggingface_hub",
        "httpx",
        "httpx2",
        "fsspec",
    ):
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
    parser.add_argument("--version", action="version", version=f"cloudload {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_trace(commands)
    _add_where(commands)
    return parser


# ---------------------------------------------------------------- convert


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "convert",
        help="raw corpora to MDS shards",
        description="Convert raw corpora to an MDS dataset: the same bytes "
        "whatever the number of processes.",
        epilog=_CONVERT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a file, folder or glob, local or in a store; - for stdin; hf://OWNER/NAME",
    )
    add("out", metavar="OUT", help="where the dataset goes: a folder, s3://..., gs://...")
    add("--split", metavar="NAME", help="write below OUT/NAME")
    add(
        "--format",
        default="auto",
        choices=["auto", "jsonl", "parquet", "text", "lines"],
        help="default: by the file's name, else text",
    )
    add(
        "--text-key",
        default="text",
        metavar="FIELD",
        help="the field with the document (default: text)",
    )
    add(
        "--id-key",
        default="id",
        metavar="FIELD",
        help="the field with the id, where there is one; else file:line (default: id)",
    )
    add(
        "--keep",
        action="append",
        default=[],
        metavar="FIELD[:ENCODING]",
        help="a further field to keep; may be repeated",
    )
    add(
        "--compression",
        default="zstd",
        metavar="NAME[:LEVEL]",
        help="zstd, zstd:7, gz, bz2 or none (default: zstd)",
    )
    add(
        "--hashes",
        default="xxh64",
        metavar="NAME,...",
        help="hashes of each shard, or none (default: xxh64)",
    )
    add(
        "--shard-bytes",
        type=_bytes,
        default="64m",
        metavar="SIZE",
        help="the most raw bytes of a shard (default: 64m)",
    )
    add("--processes", type=int, metavar="N", help="default: one per core")
    add(
        "--skip-bad",
        action="store_true",
        help="count bad records and leave them out, instead of stopping",
    )
    add(
        "--overwrite",
        action="store_true",
        help="remove the dataset that OUT holds and start afresh",
    )
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
    from cloudload.convert.convert import convert_to_mds

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
    speed = (
        f", {report.input_bytes / 1e6 / report.seconds:.1f} MB/s"
        if report.seconds and not report.resumed_shards
        else ""
    )
    lines = [
        f"{report.out} {'was complete already' if report.already_complete else 'is complete'}",
        f"  documents  {report.documents:,} ({report.text_bytes:,} bytes of text)",
        f"  left out   {report.empty:,} empty, {report.bad:,} bad",
        *(f"             {record}" for record in report.bad_records),
        f"  input      {report.files:,} files, {report.input_bytes:,} bytes{speed}",
        f"  output     {report.shards:,} shards, {report.stored_bytes:,} bytes "
        f"({report.raw_bytes:,} raw)",
        "  columns    "
        f"{', '.join(f'{name}: {encoding}' for name, encoding in report.columns.items())}",
    ]
    if report.bad > len(report.bad_records):
        lines.insert(
            3 + len(report.bad_records),
            f"             … and {report.bad - len(report.bad_records):,} more",
        )
    return "\n".join(lines)


# ---------------------------------------------------------------- trace and where


_TRACE_EXAMPLE = """\
Step 1 is the first. Rows are read from the state on, so take the last state before the steps. A single row takes far less time.

example:
  cloudload trace checkpoint.pt --steps 81200:81205 --row 3
"""
_WHERE_EXAMPLE = """\
example:
  cloudload where checkpoint.pt --id wiki/10472 --until 90000
"""


def _add_trace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "trace",
        help="what the model reads in some steps",
        description="Show the documents that the rows of some steps are made of, from a state and "
        "the data alone.",
        epilog=_TRACE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_options(parser)
    add = parser.add_argument
    add(
        "--steps",
        type=_steps,
        required=True,
        metavar="A:B",
        help="from step A up to, not including, B; or a single step",
    )
    add("--row", type=int, metavar="R", help="only this row of each global batch, from 0")
    add("--full", action="store_true", help="print texts whole, not their beginnings")
    parser.set_defaults(run=_trace, after_interrupt="Nothing was changed")


def _add_where(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "where",
        help="the steps that a document lands in",
        description="Show the steps and rows that a document lands in, from a "
        "state and the data alone.",
        epilog=_WHERE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_options(parser)
    add = parser.add_argument
    document = parser.add_mutually_exclusive_group(required=True)
    document.add_argument(
        "--id", metavar="DOC", help="its id; finding it reads the ids of all samples"
    )
    document.add_argument(
        "--sample",
        type=_sample,
        metavar="[STREAM:]N",
        help="its number in its stream, from 0, and the stream's, where several",
    )
    add("--until", type=int, required=True, metavar="N", help="the last step to look at")
    parser.set_defaults(run=_where, after_interrupt="Nothing was changed")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "state",
        metavar="STATE",
        type=Path,
        help="a state as JSON, or a torch checkpoint that holds one",
    )
    add(
        "--data",
        action="append",
        metavar="URL",
        help="where a stream's index.json is now; once for each stream, in order",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help="the tokenizer, where the state does not say, or it is elsewhere now",
    )
    add("--transform", metavar="MODULE:FUNCTION", help="the run's transform, where it had one")
    add(
        "--global-batch",
        type=int,
        metavar="ROWS",
        help="rows of a global batch (default: the state's last)",
    )
    add("--local", metavar="FOLDER", help="the shard cache")
    add("--workers", type=int, default=2, metavar="N", help="processes that read (default: 2)")
    add("--json", action="store_true", help="print JSON Lines")
    add("--quiet", action="store_true", help="no notes")


def _steps(text: str) -> range:
    first, colon, stop = text.partition(":")
    try:
        steps = range(int(first), int(stop) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B") from None
    if not steps:
        raise argparse.ArgumentTypeError(f"{text!r} has no step: B is the first that is not shown")
    return steps


def _sample(text: str) -> tuple[int, int]:
    stream, _, number = text.rpartition(":")
    if not number.isdecimal() or (stream and not stream.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither N nor STREAM:N")
    return int(stream or 0), int(number)


def _open_run(options: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    from cloudload.provenance import load_state, open_run

    run = open_run(
        load_state(options.state),
        data=options.data,
        tokenizer=options.tokenizer,
        transform=options.transform,
        global_batch=options.global_batch,
    )
    return run, {"local": options.local, "num_workers": options.workers}


def _trace(options: argparse.Namespace) -> int:
    from cloudload.provenance import trace_steps

    run, delivery = _open_run(options)
    steps = 0
    for step, spans in trace_steps(run, options.steps, options.row, **delivery):
        steps += 1
        first_row = run.rows_of_step(step).start
        for span in spans:
            if options.json:
                print(
                    json.dumps(
                        {"step": step, **span.as_dict(), "row": span.row - first_row},
                        ensure_ascii=False,
                        default=str,
                    )
                )
                continue
            text = (
                span.text
                if options.full
                else json.dumps(span.text[:_SHOWN_CHARACTERS], ensure_ascii=False)
            )
            print(
                f"step {step:,}  row {span.row - first_row}  {span.stream}  epoch "
                f"{span.epoch}  id {span.id}  "
                f"{span.shard}  sample {span.sample}  tokens {span.start}:{span.stop}\n    {text}"
            )
    if steps < len(options.steps):
        print(
            f"cloudload: the data ends after step {options.steps.start + steps - 1:,}",
            file=sys.stderr,
        )
    return 0


def _where(options: argparse.Namespace) -> int:
    from cloudload.provenance import find_document, find_samples

    run, delivery = _open_run(options)
    samples = (
        [options.sample]
        if options.sample is not None
        else find_samples(run, options.id, **delivery)
    )
    found = 0
    for stream, number in samples:
        for occurrence in find_document(run, stream, number, options.until, **delivery):
            found += 1
            if options.json:
                print(json.dumps(asdict(occurrence), ensure_ascii=False))
            else:
                print(
                    f"step {occurrence.step:,}  row {occurrence.row}  {occurrence.stream}  epoch "
                    f"{occurrence.epoch}  "
                    f"sample {occurrence.sample}  tokens {occurrence.start}:{occurrence.stop}"
                )
    if not found:
        print(f"cloudload: in no step from the state's up to {options.until:,}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
