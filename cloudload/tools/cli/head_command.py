"""`cloudload head`: print documents of an MDS dataset.

Print the first documents of an MDS dataset, those with an ID, or those whose text contains a
pattern. Of a glob of datasets, print those of each dataset, with its name. Nothing is written.

On a terminal, long documents are shortened, and control characters are escaped. In a pipe, or with
--json, each full document is printed as one line of JSON. The first documents are read from the
first bytes of a shard, and their hash is not checked. --id and --grep read whole shards, in order.
The exit status is 1 if no document matches.

With --mask, documents are tokenized as a run does, and the tokens that it trains are marked: by
color, or by brackets if the terminal has no color. Documents that the run leaves out say why.

examples:
  cloudload head s3://bucket/mds --split train -n 3
  cloudload head 's3://bucket/topics/*' -n 1     of each dataset of a glob
  cloudload head s3://bucket/mds --grep '[Ll]icen[cs]e' | jq .values.text
  cloudload head s3://bucket/chats --mask --tokenizer Qwen/Qwen3-8B --chat tokenizer,train=last
"""

from __future__ import annotations

import argparse
import shutil
import sys

from cloudload.system import is_terminal
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given, read_functions
from cloudload.tools.cli.output import print_json, print_lines, print_marked, print_message


def add_head(parser: command.CommandParser) -> None:
    from cloudload.tools.inspect.samples import read_samples

    add = command.set_up(parser, _head)
    add_declared(
        add,
        read_samples,
        "dataset split limit id pattern text_key mask tokenizer chat transform encode seed "
        "tokens_key tokens_dtype labels_key",
        limit={"flags": ("-n", "--limit")},
        id={"metavar": "DOC"},
        pattern={"flags": ("--grep",), "metavar": "PATTERN"},
    )
    add("--full", action="store_true", help="print the full text, not only its beginning")


def _head(options: argparse.Namespace) -> int:
    from cloudload.config import TEXT_KEY
    from cloudload.data import redact
    from cloudload.tools.inspect.samples import read_samples

    asked = read_functions(list_given(options, read_samples))
    is_on_terminal = is_terminal(sys.stdout)
    num_found, text_key = 0, getattr(options, "text_key", TEXT_KEY)
    for stream in command.list_datasets(asked["dataset"], asked.get("split")):
        for sample in read_samples(**{**asked, "dataset": stream.remote}):
            num_found += 1
            if options.json or not is_on_terminal:
                named = {"dataset": redact(stream.remote)} if stream.name else {}
                print_json({**named, **sample.as_dict()}, indent=None)
                continue
            name, columns = stream.name or "", shutil.get_terminal_size().columns
            if sample.document is not None:
                place = sample.describe_place(is_full=options.full)
                heading = "  ".join([name, *place] if name else place)
                lines_of_text = sample.document.describe(columns, is_full=options.full)
                print_marked([*lines_of_text, []], heading=heading)
                continue
            heading, *lines = sample.describe(text_key, columns, is_full=options.full)
            print_lines([*lines, ""], heading=f"{name}  {heading}" if name else heading)
    if not num_found:
        print_message("no document matches")
    return 0 if num_found else 1
