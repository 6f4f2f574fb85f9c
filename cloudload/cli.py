"""The command line: a thin subcommand for each function of the library.

    cloudload convert   convert raw corpora to MDS            cloudload.convert
    cloudload trace     list the documents that steps read    cloudload.provenance
    cloudload where     find the steps that read a document   cloudload.provenance

Results go to stdout; progress, logs and errors to stderr. The exit status is 1 for an error, 2 for
a wrong command line, 130 for Ctrl-C.
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
from cloudload.errors import CloudloadError

if TYPE_CHECKING:
    from cloudload.convert.journal import ConvertReport
    from cloudload.provenance import Occurrence, Run
    from cloudload.workers.trace import TracedSpan

_Commands = argparse._SubParsersAction

_CHATTY = "botocore boto3 urllib3 google datasets huggingface_hub httpx httpx2 fsspec"

_SHOWN_CHARACTERS = 160

_CONVERT_EXAMPLE = """\
A conversion that was stopped or killed resumes when you run it again. It recognizes its input by
file names and sizes.

example:
  cloudload convert corpus/ 's3://bucket/*.jsonl.zst' s3://bucket/mds --split train --keep source
"""
_TRACE_EXAMPLE = """\
Steps count from 1. Reading starts at the state, so pass the last state saved before the steps. A
single row is much faster.

example:
  cloudload trace checkpoint.pt --steps 81200:81205 --row 3
"""
_WHERE_EXAMPLE = """\
example:
  cloudload where checkpoint.pt --id wiki/10472 --until 90000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, on `sys.argv` by default; return the exit status.

    Errors are printed to stderr. Raises `SystemExit` for a wrong command line, `--help` and
    `--version`.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO,
        format="%(message)s",
        stream=sys.stderr,
    )
    for library in _CHATTY.split():
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


def _add_command(
    commands: _Commands[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str,
    after_interrupt: str,
) -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        name, help=help, description=description, epilog=epilog, formatter_class=layout
    )
    parser.set_defaults(run=run, after_interrupt=after_interrupt)
    return parser


# ---------------------------------------------------------------- convert


def _add_convert(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _add_command(
        commands,
        "convert",
        _convert,
        help="convert raw corpora to MDS shards",
        description="Convert raw corpora to an MDS dataset. The output has the same bytes for any "
        "number of processes.",
        epilog=_CONVERT_EXAMPLE,
        after_interrupt="Run the same command again to resume",
    ).add_argument
    where = "a file, folder or glob, local or in a store; - for stdin; hf://OWNER/NAME"
    add("inputs", nargs="+", metavar="INPUT", help=where)
    add("out", metavar="OUT", help="location of the dataset: a folder, s3://..., gs://...")
    add("--split", metavar="NAME", help="write to OUT/NAME")
    formats = ["auto", "jsonl", "parquet", "text", "lines"]
    add("--format", default="auto", choices=formats, help="default: by the file's name, else text")
    text = "field that holds the document (default: text)"
    add("--text-key", default="text", metavar="FIELD", help=text)
    identifier = "field that holds the id; records without it get file:line (default: id)"
    add("--id-key", default="id", metavar="FIELD", help=identifier)
    kept = "another field to keep; may be repeated"
    add("--keep", action="append", default=[], metavar="FIELD[:ENCODING]", help=kept)
    codecs = "zstd, zstd:7, gz, bz2 or none (default: zstd)"
    add("--compression", default="zstd", metavar="NAME[:LEVEL]", help=codecs)
    hashes = "hashes of each shard, or none (default: xxh64)"
    add("--hashes", default="xxh64", metavar="NAME,...", help=hashes)
    size = "maximum raw size of a shard (default: 64m)"
    add("--shard-bytes", type=_bytes, default="64m", metavar="SIZE", help=size)
    add("--processes", type=int, metavar="N", help="default: one per core")
    skip = "leave out and count bad records instead of stopping"
    add("--skip-bad", action="store_true", help=skip)
    add("--overwrite", action="store_true", help="remove the dataset at OUT and start over")
    add("--quiet", action="store_true", help="no progress bar, no logs")
    add("--json", action="store_true", help="print the report as JSON")
    add("--report", type=Path, metavar="FILE", help="also write the report to FILE as JSON")


def _bytes(text: str) -> int:
    from cloudload.config.checks import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _convert(options: argparse.Namespace) -> int:
    from cloudload.convert import convert_to_mds

    if options.report and not options.report.absolute().parent.is_dir():
        raise ValueError(
            f"--report is {options.report}, but there is no folder {options.report.parent}. Create "
            "it first"
        )
    names = "text_key id_key keep format split shard_bytes processes skip_bad overwrite"
    report = convert_to_mds(
        options.inputs,
        options.out,
        compression=None if options.compression == "none" else options.compression,
        hashes=() if options.hashes == "none" else options.hashes.split(","),
        progress=not options.quiet,
        **{name: getattr(options, name) for name in names.split()},
    )
    if options.report:
        options.report.write_text(report.to_json() + "\n")
    print(report.to_json() if options.json else _summary(report))
    return 0


def _summary(report: ConvertReport) -> str:
    speed = ""
    if report.seconds and not report.resumed_shards:
        speed = f", {report.input_bytes / 1e6 / report.seconds:.1f} MB/s"
    state = "was already complete" if report.already_complete else "is complete"
    bad = [f"             {record}" for record in report.bad_records]
    if report.bad > len(bad):
        bad.append(f"             … and {report.bad - len(bad):,} more")
    columns = ", ".join(f"{name}: {encoding}" for name, encoding in report.columns.items())
    lines = [
        f"{report.out} {state}",
        f"  documents  {report.documents:,} ({report.text_bytes:,} bytes of text)",
        f"  left out   {report.empty:,} empty, {report.bad:,} bad",
        *bad,
        f"  input      {report.files:,} files, {report.input_bytes:,} bytes{speed}",
        f"  output     {report.shards:,} shards, {report.stored_bytes:,} bytes "
        f"({report.raw_bytes:,} raw)",
        f"  columns    {columns}",
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------- trace and where


def _add_trace(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "trace",
        _trace,
        help="list the documents that steps read",
        description="Show the documents in the rows of some steps, using only a state and the "
        "data.",
        epilog=_TRACE_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    _add_run_options(parser)
    add = parser.add_argument
    steps = "steps from A up to, but not including, B; or a single step"
    add("--steps", type=_steps, required=True, metavar="A:B", help=steps)
    add("--row", type=int, metavar="R", help="only this row of each global batch, from 0")
    add("--full", action="store_true", help="print the full text, not only its beginning")


def _add_where(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "where",
        _where,
        help="find the steps that read a document",
        description="Show the steps and rows that read a document, using only a state and the "
        "data.",
        epilog=_WHERE_EXAMPLE,
        after_interrupt="Nothing was changed",
    )
    _add_run_options(parser)
    document = parser.add_mutually_exclusive_group(required=True).add_argument
    document("--id", metavar="DOC", help="its id; the search reads the ids of all samples")
    number = "its index in its stream, from 0; with several streams, prefix the stream's index"
    document("--sample", type=_sample, metavar="[STREAM:]N", help=number)
    parser.add_argument("--until", type=int, required=True, metavar="N", help="the last step")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("state", metavar="STATE", type=Path, help="a JSON state, or a torch checkpoint with one")
    data = "the current location of a stream's index.json; once for each stream, in order"
    add("--data", action="append", metavar="URL", help=data)
    tokenizer = "the tokenizer, if the state does not record it or it has moved"
    add("--tokenizer", metavar="NAME", help=tokenizer)
    add("--transform", metavar="MODULE:FUNCTION", help="the run's transform, if it had one")
    batch = "rows per global batch (default: as in the state)"
    add("--global-batch", type=int, metavar="ROWS", help=batch)
    add("--local", metavar="FOLDER", help="the shard cache")
    add("--workers", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    add("--json", action="store_true", help="print JSON Lines")
    add("--quiet", action="store_true", help="no logs")


def _steps(text: str) -> range:
    first, colon, stop = text.partition(":")
    try:
        steps = range(int(first), int(stop) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither A:B nor a step") from None
    if not steps:
        raise argparse.ArgumentTypeError(f"{text!r} has no steps, because B is excluded")
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
    num_steps = 0
    for step, spans in trace_steps(run, options.steps, options.row, **delivery):
        num_steps += 1
        first_row = run.rows_of_step(step).start
        for span in spans:
            print(_describe_span(step, span.row - first_row, span, options))
    if num_steps < len(options.steps):
        last = options.steps.start + num_steps - 1
        print(f"cloudload: the data ends after step {last:,}", file=sys.stderr)
    return 0


def _describe_span(step: int, row: int, span: TracedSpan, options: argparse.Namespace) -> str:
    if options.json:
        values = {"step": step, **span.as_dict(), "row": row}
        return json.dumps(values, ensure_ascii=False, default=str)
    text = span.text
    if not options.full:
        text = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False)
    return (
        f"step {step:,}  row {row}  {span.stream}  epoch {span.epoch}  id {span.id}  {span.shard}  "
        f"sample {span.sample}  tokens {span.start}:{span.stop}\n    {text}"
    )


def _where(options: argparse.Namespace) -> int:
    from cloudload.provenance import find_document, find_samples

    run, delivery = _open_run(options)
    if options.sample is not None:
        samples = [options.sample]
    else:
        samples = find_samples(run, options.id, **delivery)
    is_found = False
    for stream, number in samples:
        for occurrence in find_document(run, stream, number, options.until, **delivery):
            is_found = True
            if options.json:
                print(json.dumps(asdict(occurrence), ensure_ascii=False))
            else:
                print(_describe_occurrence(occurrence))
    if not is_found:
        until = f"{options.until:,}"
        print(f"cloudload: no step after the state, up to step {until}, reads it", file=sys.stderr)
    return 0


def _describe_occurrence(found: Occurrence) -> str:
    return (
        f"step {found.step:,}  row {found.row}  {found.stream}  epoch {found.epoch}  "
        f"sample {found.sample}  tokens {found.start}:{found.stop}"
    )


if __name__ == "__main__":
    sys.exit(main())
