"""Describe the files of a raw corpus, and write the command that converts them.

a.jsonl.gz  b.jsonl.gz  README.md    2 .jsonl.gz and 1 .md
                                     cloudload convert 'corpus/*.jsonl.gz' corpus-mds
train/a.txt  val/b.txt               cloudload convert corpus/train corpus-mds --split train &&
                                     cloudload convert corpus/val corpus-mds --split val
a.xlsx                               a table. Convert it to JSON Lines or Parquet
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from cloudload.data.file_kinds import FORMATS_BY_EXTENSION, reason_to_refuse, split_name
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import (
    BUCKET_SCHEMES,
    is_local,
    join_url,
    local_path,
    scheme_of,
    split_url,
)

RUN = "Run: "
"""The text that introduces a command at the end of a message."""

_MOST_KINDS = 4
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "eval", "test"}


def count_kinds(names: Sequence[str]) -> str:
    """Count files by suffix, such as `5 .jsonl.gz and 1 without a suffix`."""
    counts = Counter(map(_suffix_of, names)).most_common()
    parts = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts[:_MOST_KINDS]]
    if rest := sum(count for _, count in counts[_MOST_KINDS:]):
        parts.append(f"{rest:,} others")
    return join_words(parts)


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`."""
    *head, last = words
    return f"{', '.join(head)} and {last}" if head else last


def advise_on_files(location: str, names: Sequence[str], split: str | None = None) -> str | None:
    """The next step for the raw files `names` below the folder `location`, usually a command.

    The command converts the files of the most common format. It converts text only if there is no
    other format. Returns None if no file can be converted and none has a known extension.
    """
    taken = _choose_files(names)
    if not taken:
        reasons = ((name, reason_to_refuse(name)) for name in names)
        return next((f"{name} is {reason}" for name, reason in reasons if reason), None)
    out = output_beside(location, split)
    splits = list(dict.fromkeys(name.partition("/")[0] for name in taken))
    if split is not None or len(splits) < 2 or not _SPLITS.issuperset(splits):
        return convert_advice([_command(_list_inputs(location, names, taken), out, split)], out)
    commands = []
    for each in splits:
        below, own = (_list_below(each, files) for files in (names, taken))
        commands.append(_command(_list_inputs(join_url(location, each), below, own), out, each))
    return convert_advice(commands, out)


def advise_on_input(location: str, out: str, split: str | None = None) -> str:
    """The advice to convert one input of `cloudload convert`, such as a glob."""
    return convert_advice([_command([location], out, split)], out)


def convert_advice(commands: Sequence[str], out: str) -> str:
    """Advise to convert raw data with commands that the user can paste."""
    return (
        f"Convert the raw data, and pass {redact(out)!r} to the loader. "
        f"{RUN}{redact(' && '.join(commands))}"
    )


def output_name(location: str) -> str:
    """A name for the folder of the converted dataset, such as `corpus-mds`."""
    parts = PurePosixPath(location.partition("://")[2] or location)
    return f"{parts.name.partition('.')[0] or parts.name or 'corpus'}-mds"


def output_beside(location: str, split: str | None = None) -> str:
    """The location to suggest for the converted dataset, which may not be inside `location`.

    If `location` ends in `split`, the result omits `split`, because the converter appends it. If
    cloudload cannot write beside `location`, the result is in the current folder.
    """
    location = location.rstrip("/")
    if not is_local(location):
        location = redact(location)  # the name of the output must not contain a password
    if split and location.endswith(f"/{split}"):
        location = location[: -len(split) - 1]
    if is_local(location):
        path = os.path.normpath(local_path(location))
        path = os.path.abspath(path) if path.startswith(".") else path
        return os.path.join(os.path.dirname(path), output_name(path))
    can_write = scheme_of(location) in BUCKET_SCHEMES and split_url(location)[1]
    name = output_name(location)
    return join_url(location.rpartition("/")[0], name) if can_write else name


def _choose_files(names: Sequence[str]) -> list[str]:
    """The files of the format to convert.

    Empty if that format is text, and at least half of all files are of a refused kind.
    """
    readable = [name for name in names if not reason_to_refuse(name)]
    counts = Counter(map(_format_of, readable))
    chosen = max(counts, key=lambda each: (each != "text", counts[each]), default="text")
    if chosen == "text" and len(readable) <= len(names) - len(readable):
        return []
    return [name for name in readable if _format_of(name) == chosen]


def _list_inputs(location: str, names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The folder if all its files are converted, or else a glob for each suffix to convert.

    Files without a suffix are listed by name.
    """
    if len(taken) == len(names):
        return [location]
    inputs = []
    for suffix in dict.fromkeys(map(_suffix_of, taken)):
        own = [name for name in taken if _suffix_of(name) == suffix]
        pattern = f"**/*{suffix}" if any("/" in name for name in own) else f"*{suffix}"
        inputs += [join_url(location, name) for name in ([pattern] if suffix else own)]
    return inputs


def _list_below(folder: str, names: Sequence[str]) -> list[str]:
    return [name[len(folder) + 1 :] for name in names if name.startswith(f"{folder}/")]


def _command(inputs: Sequence[str], out: str, split: str | None) -> str:
    words = ["cloudload", "convert", *inputs, out, *(["--split", split] if split else [])]
    return " ".join(map(shlex.quote, words))


def _format_of(name: str) -> str:
    kind = FORMATS_BY_EXTENSION.get(split_name(name)[0], "text")
    return "jsonl" if kind == "json" else kind  # many folders have both extensions


def _suffix_of(name: str) -> str:
    extension, compression = split_name(name)
    return extension + (PurePosixPath(name).suffix if compression else "")
