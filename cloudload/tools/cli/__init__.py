"""The command line: thin subcommands over the library's functions.

    main ─► a subcommand's module ─► the library's function ─► stdout, exit status

    convert_command   convert raw corpora to MDS
    index_command     index Parquet files, with `convert`
    check_command     check an MDS dataset
    info_command      summarize an MDS dataset, with `inspect`
    head_command      print documents of an MDS dataset, with `inspect`
    count_command     count the tokens of a dataset
    select_command    choose documents of a dataset
    trace_command     list the documents that steps read
    where_command     find the steps that read a document
    rows_command      show the rows of steps as HTML, with `provenance`
    plan_command      forecast a run, with `forecast`
    bench_command     measure the speed of a loader, with `bench`
    state_command     show or compare checkpoints, with `provenance`
    fetch_command     fetch shards into a node's cache, with `warm`
    blame_command     find documents with high losses, with `losses`
    export_command    write rows as pre-tokenized MDS
    command           the parser of a command, and errors in its words
    declared_options  options from the declarations of what a command calls
    run_options       options that name a run
    output            print text, JSON and messages

Results go to stdout. Progress, logs and errors go to stderr. The exit status is 0 for success, 1
for an error or if nothing matches, 2 for a wrong command line, and 130 for Ctrl-C. An error is one
sentence. If the environment variable CLOUDLOAD_TRACEBACK is set, its traceback is printed first.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from cloudload._version import __version__
from cloudload.data import explain
from cloudload.errors import CloudloadError
from cloudload.tools.cli import command
from cloudload.tools.cli.bench_command import add_bench
from cloudload.tools.cli.blame_command import add_blame
from cloudload.tools.cli.check_command import add_check
from cloudload.tools.cli.convert_command import add_convert
from cloudload.tools.cli.count_command import add_count
from cloudload.tools.cli.export_command import add_export
from cloudload.tools.cli.fetch_command import add_fetch
from cloudload.tools.cli.head_command import add_head
from cloudload.tools.cli.index_command import add_index
from cloudload.tools.cli.info_command import add_info
from cloudload.tools.cli.output import (
    EscapingFormatter,
    notice_after,
    prepare_streams,
    print_message,
)
from cloudload.tools.cli.plan_command import add_plan
from cloudload.tools.cli.rows_command import add_rows
from cloudload.tools.cli.select_command import add_select
from cloudload.tools.cli.state_command import add_state
from cloudload.tools.cli.trace_command import add_trace
from cloudload.tools.cli.where_command import add_where

_COMMANDS = (
    add_convert,
    add_index,
    add_check,
    add_info,
    add_head,
    add_count,
    add_select,
    add_trace,
    add_where,
    add_rows,
    add_plan,
    add_bench,
    add_state,
    add_fetch,
    add_blame,
    add_export,
)
_PATIENCE_S = 2.0
_TRACEBACK = "CLOUDLOAD_TRACEBACK"
_CHATTY = "botocore boto3 urllib3 google datasets huggingface_hub httpx httpx2 fsspec"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    `arguments` defaults to `sys.argv[1:]`. Prints errors to stderr. Raises `SystemExit` for a wrong
    command line, `--help` and `--version`.
    """
    prepare_streams()
    try:
        parser = make_parser()
        if not (sys.argv[1:] if arguments is None else arguments):
            parser.print_help(sys.stderr)
            return 2
        options = parser.parse_args(arguments)
    except KeyboardInterrupt:  # while the command's modules are loaded
        print_message(f"interrupted. {command.UNCHANGED}")
        return 130
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(message)s"))
    level = logging.WARNING if options.quiet else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    for library in _CHATTY.split():
        logging.getLogger(library).setLevel(logging.WARNING)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        with notice_after(_PATIENCE_S, options.parser.prog, shown=not options.quiet):
            return run(options)
    except BrokenPipeError:
        return 1
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            print_message(f"the traceback:\n{traceback.format_exc()}")
        print_message(_describe(error, options.parser))
        return 1
    except KeyboardInterrupt:
        print_message(f"interrupted. {options.after_interrupt}")
        return 130


def _describe(error: Exception, parser: argparse.ArgumentParser) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror[0].lower()}{error.strerror[1:]}: {error.filename}"
    # other classes derived from ValueError, such as UnicodeDecodeError, come from other libraries
    is_own = isinstance(error, ValueError) and type(error).__module__.startswith("cloudload.")
    if isinstance(error, CloudloadError | OSError) or type(error) is ValueError or is_own:
        return command.in_words_of_options(str(error), parser)
    return (
        f"an unexpected error ended the command ({explain(error)}). Check its arguments and its "
        f"input. To see where the error comes from, run it again with {_TRACEBACK}=1"
    )


def make_parser() -> command.CommandParser:
    parser = command.CommandParser(
        prog="cloudload",
        description="Stream raw text from object storage into LLM pretraining.",
        epilog="example:\n  cloudload convert corpus/ s3://bucket/mds --split train",
    )
    parser.add_argument("--version", action="version", version=f"cloudload {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="cloudload")
    for add_options in _COMMANDS:
        name, help, description, epilog = command.read_docstring(add_options)
        commands.add_parser(
            name, help=help, fill=add_options, description=description, epilog=epilog
        )
    return parser
