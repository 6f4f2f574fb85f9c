"""`cloudload head`: print documents of an MDS dataset.

Print the first documents of an MDS dataset, those with an ID, or those whose text contains a
pattern. Nothing is written.

On a terminal, long documents are shortened, and control characters are escaped. In a pipe, or with
--json, each full document is printed as one line of JSON. The first documents are read from the
first bytes of a shard, and their hash is not checked. --id and --grep read whole shards, in order.
The exit status is 1 if no document matches.

example:
  cloudload head s3://bucket/mds --split train -n 3
  cloudload head s3://bucket/mds --grep '[Ll]icen[cs]e' | jq .values.text
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cloudload.system import counted, is_terminal
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import (
    escape,
    escape_lines,
    print_json,
    print_message,
    print_text,
    wrap,
)

if TYPE_CHECKING:
    from cloudload.tools.inspect.samples import Sample

_SHOWN_CHARACTERS = 800
_BEFORE_MATCH = 200
_SHOWN_VALUE, _SHOWN_IDS = 200, 16
_INDENT = "    "


def add_head(parser: command.CommandParser) -> None:
    from cloudload.tools.inspect.samples import read_samples

    add = command.set_up(parser, _head)
    add_declared(
        add,
        read_samples,
        "dataset split limit id pattern text_key",
        limit={"flags": ("-n", "--limit")},
        id={"metavar": "DOC"},
        pattern={"flags": ("--grep",), "metavar": "PATTERN"},
    )
    add("--full", action="store_true", help="print the full text, not only its beginning")


def _head(options: argparse.Namespace) -> int:
    from cloudload.config import TEXT_KEY
    from cloudload.tools.inspect.samples import read_samples

    is_on_terminal = is_terminal(sys.stdout)
    num_found, text_key = 0, getattr(options, "text_key", TEXT_KEY)
    for sample in read_samples(**list_given(options, read_samples)):
        num_found += 1
        if options.json or not is_on_terminal:
            print_json(sample.as_dict(), indent=None)
            continue
        columns = shutil.get_terminal_size().columns
        lines = [*describe_sample(sample, text_key, columns, is_full=options.full)]
        print_text("\n".join([*lines[1:], ""]), heading=lines[0])
    if not num_found:
        print_message("no document matches")
    return 0 if num_found else 1


def describe_sample(sample: Sample, text_key: str, columns: int, *, is_full: bool) -> Iterator[str]:
    """Yield the lines that show a sample on a terminal that is `columns` cells wide."""
    values = dict(sample.values)
    text = values.pop(text_key, None)
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    head = [f"sample {sample.sample:,}", escape(sample.shard)]
    if values.get("id") is not None:
        head.append(f"id {escape(_describe_value(values.pop('id'), is_full))}")
    if isinstance(text, str):
        head.append(counted(len(text), "character"))
    yield "  ".join(head)
    shown = {name: _describe_value(value, is_full) for name, value in values.items()}
    if text is not None and not isinstance(text, str):
        shown[text_key] = _describe_value(text, is_full)
    for name, value in shown.items():
        yield from wrap(f"  {escape(name)}: {escape(value)}", columns)
    if isinstance(text, str):
        yield from _describe_text(text, sample.match, columns, is_full)


def _describe_text(
    text: str, match: tuple[int, int] | None, columns: int, is_full: bool
) -> Iterator[str]:
    """Yield the lines of a text, or of its part around `match` if it is not shown in full."""
    start = 0 if match is None else max(0, match[0] - _BEFORE_MATCH)
    stop = start + _SHOWN_CHARACTERS
    if is_full:
        start, stop = 0, len(text)
    if start:
        yield f"  … {counted(start, 'character')} before"
    for line in escape_lines(text[start:stop]):
        yield from (f"{_INDENT}{part}" for part in wrap(line, columns - len(_INDENT)))
    if stop < len(text):
        yield f"  … {counted(len(text) - stop, 'more character')}"


def _describe_value(value: Any, is_full: bool) -> str:
    from cloudload.tools.inspect.samples import Unread

    if isinstance(value, Unread):
        return f"{counted(value.bytes, 'byte')} of {value.encoding}, not decoded"
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        shown = value if is_full else value[:_SHOWN_IDS]
        more = "" if len(shown) == len(value) else " …"
        return f"{counted(len(value), 'integer')}: {' '.join(map(str, shown))}{more}"
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
        kind = f"{counted(len(value), 'byte')}: "
    else:
        text, kind = value if isinstance(value, str) else json.dumps(value), ""
    if is_full or len(text) <= _SHOWN_VALUE:
        return f"{kind}{text}"
    return f"{kind}{text[:_SHOWN_VALUE]} … {counted(len(text) - _SHOWN_VALUE, 'more character')}"
