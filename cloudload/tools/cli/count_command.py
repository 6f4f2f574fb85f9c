"""`cloudload count`: count the tokens of a dataset.

Count the tokens of each document in an MDS dataset, and store these lengths in the dataset's
folder, using 2 bytes per document. A folder of JSON Lines files gets an index first, beside them.

To resume an interrupted count, run the same command again. A loader with the same data, tokenizer,
text column, and transform finds the lengths automatically.

examples:
  cloudload count s3://bucket/mds --tokenizer gpt2
  cloudload count s3://bucket/mds --tokenizer gpt2 --sample 1%       an estimate, in seconds
  cloudload count s3://bucket/chats --tokenizer Qwen/Qwen3-8B --chat tokenizer,max_tokens=4096
  cloudload count 's3://bucket/topics/*' --tokenizer gpt2            all datasets of a glob
  cloudload count s3://bucket/mds --tokenizer gpt2 --worker 3/64     one job in an array of 64
  cloudload count s3://bucket/mds --tokenizer gpt2 --engine ray --address auto
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudload.errors import DatasetError
from cloudload.system import reports
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given, read_functions
from cloudload.tools.cli.output import print_result

if TYPE_CHECKING:
    from cloudload.tools.count.estimate import CountEstimate
    from cloudload.tools.count.length_report import CountReport


def add_count(parser: command.CommandParser) -> None:
    from cloudload.tools.count.count import count_tokens

    add = command.set_up(parser, _count, after_interrupt="Run the same command again to resume")
    names = "dataset tokenizer split text_key tokens_key tokens_dtype labels_key "
    names += "strip_tokens transform transform_id chat encode encode_id seed on_error "
    names += "tokenizer_backend out by again processes worker"
    add_declared(add, count_tokens, names, processes=command.COUNT)
    command.add_engine_options(add)
    sample = "estimate the tokens from this share of the documents, such as 1%%; write nothing"
    add("--sample", type=command.parse_share, metavar="SHARE", help=sample)
    png = "also save a histogram of the lengths to FILE (requires matplotlib)"
    add("--png", type=command.path_argument, metavar="FILE", help=png)


def _index_lines(asked: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Index the files of a folder of JSON Lines beside them. Returns whether it was one."""
    from cloudload.tools.convert.index_files import index_lines_beside

    names = ("split", "text_key", "tokens_key", "processes")
    chosen = {name: asked[name] for name in names if name in asked}
    all_columns = bool(asked.keys() & {"transform", "chat", "encode", "labels_key", "by"})
    return index_lines_beside(asked["dataset"], all_columns=all_columns, **chosen, **run)


def _count(options: argparse.Namespace) -> int:
    from cloudload.tools.count.count import count_tokens, estimate_tokens
    from cloudload.tools.count.length_report import plot_lengths

    asked = read_functions(list_given(options, count_tokens))
    if not asked.keys() & {"tokenizer", "tokens_key", "encode"}:
        options.parser.error(
            "--tokenizer is missing. Pass --tokenizer, or --tokens-key if the data is token IDs, "
            "or --encode"
        )
    if options.png is not None:
        reports.check_picture(options.png)
        command.check_output_path("--png", options.png, options)
    found: CountReport | CountEstimate | None
    if options.sample is None:
        with command.open_engine(options) as executor:
            run: dict[str, Any] = {"executor": executor, "progress": not options.quiet}
            try:
                found = count_tokens(**asked, **run)
            except DatasetError:
                if not _index_lines(asked, run):
                    raise
                found = count_tokens(**asked, **run)
    else:
        for name in asked.keys() & {"by", "again", "out", "worker"}:
            raise ValueError(f"--{name} requires a full count. Remove --sample")
        asked.pop("processes", None)
        found = estimate_tokens(share=options.sample, **asked)
    if found is not None:
        if options.png is not None:
            plot_lengths(found.stats, found.tokens, found.dataset, options.png)
        print_result(found, found.describe(), as_json=options.json)
    return 0
