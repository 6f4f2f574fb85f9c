"""Explain why a location is not an MDS dataset, and say what to pass or which command converts it.

    corpus/train/index.json     split="train"
    corpus/index.json           its folder
    corpus/.convert/ …          the same conversion again
    hf://owner/name             cloudload convert hf://owner/name name-mds
    corpus/a.jsonl.gz …         cloudload index corpus corpus-index, or cloudload convert corpus …
    a.jsonl.gz  b.jsonl.gz  README.md    2 .jsonl.gz and 1 .md
                                         cloudload convert 'corpus/*.jsonl.gz' corpus-mds
    train/a.txt  val/b.txt               cloudload convert corpus/train corpus-mds --split train &&
                                         cloudload convert corpus/val corpus-mds --split val
    a.xlsx                               a table. Convert it to JSON Lines or Parquet

A folder is surveyed with few requests: its files, and the datasets in it.

    corpus/    a.jsonl  .git/  train/     files        a.jsonl
    train/     index.json  shard…         datasets     train
    val/       .convert/  shard…          unfinished   val

A location is inspected only after its index was not found. If the store does not allow cloudload to
inspect it, there is no explanation, and the caller raises its own error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cloudload.data.file_kinds import (
    FORMATS_BY_EXTENSION,
    find_table,
    hidden_part,
    is_table_data,
    reason_to_refuse,
    refuse_table,
    split_name,
)
from cloudload.data.mds import shard_entries, virtual_index
from cloudload.data.mds.folder_globs import find_folders
from cloudload.data.mds.own_objects import JOURNAL_FOLDER, is_of_dataset
from cloudload.data.storage import urls
from cloudload.data.storage.globs import Glob, find_glob
from cloudload.data.storage.locations import MOST_PEEKED, Location
from cloudload.data.storage.nearby import DEADLINE_S, join_words, name_some, raise_if_nothing
from cloudload.data.storage.redaction import redact
from cloudload.errors import DatasetError, StoreError

_MOST_FOLDERS = 20
_HUB_NAME = re.compile(r"hf://(?!(?:datasets|models|spaces|buckets)/)[^/?@]+(/[^/?@]+)?(\?.*)?")
_BARE_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PAGE = re.compile(r"https?://(?:www\.)?huggingface\.co/datasets/([^/?#@]+/[^/?#@]+)/?")
_SAVED_DATASET = {"state.json", "dataset_info.json"}
_SAVED_DATASETS = "dataset_dict.json"

_RUN = "Run: "
"""The text that introduces a command at the end of a message."""

_OUTPUT_SUFFIX = "-mds"
_MOST_KINDS = 4
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "eval", "test"}


def refuse_hub_name(location: Location) -> None:
    """Raise `DatasetError` if a location is the name of a Hugging Face dataset.

    This sends no request.
    """
    page = _HUB_PAGE.fullmatch(location.remote)
    url = f"hf://{page[1]}" if page else location.remote
    if not _HUB_NAME.fullmatch(url):
        return
    name = url.partition("?")[0].removeprefix("hf://")
    raise DatasetError(
        f"{redact(location.remote)} is a dataset on the Hugging Face Hub, not an MDS dataset (for "
        f"a repository of MDS shards, pass hf://datasets/{name}). "
        f"{_advise_on_input(url, _output_name(name), location.split)}"
    )


def survey(location: Location) -> Survey:
    """Survey a location, which is a folder or a glob. Finds nothing if it cannot be listed."""
    location = location.within(DEADLINE_S)
    try:
        glob = find_glob(location)
        return _survey_folder(location.at(glob.folder) if glob else location)
    except (StoreError, ValueError):
        return Survey([], [], [], [], is_complete=False)


def has_parquet(location: Location, found: Survey) -> bool:
    """Whether a location without an index has Parquet files, and fewer of any other format.

    `found` is its survey. Raises `DatasetError` for a folder of splits, because one run seldom
    reads several.
    """
    if glob := find_glob(location):
        files = [name for name in found.files if glob.matches(name)]
        return bool(files) and all(map(virtual_index.is_parquet, files))
    taken = _choose_files([name for name in found.files if not is_of_dataset(name)])
    is_raw = not (found.datasets or found.unfinished or found.tables)
    if not is_raw or not taken or not virtual_index.is_parquet(taken[0]):
        return False
    if len(splits := sorted({name.partition("/")[0] for name in taken})) > 1 and (
        _SPLITS.issuperset(splits)
    ):
        raise DatasetError(
            f"{location} has Parquet files of several splits: {', '.join(splits)}. Pass "
            f"Stream({redact(location.url)!r}, split={splits[0]!r}) as data, or a list of splits"
        )
    return True


def raise_clearer(error: StoreError, location: Location, found: Survey | None = None) -> None:
    """Raise a clearer error than `error` about a location that has no index.

    `found` is the survey of the location, if there is one. Raises `DatasetError` if the location
    has something else, such as raw files, and `StoreError` if nothing is stored there. Returns if
    the reason is not known.
    """
    if reason := _explain(location, found):
        raise DatasetError(reason) from None
    what = f"read the dataset in {location}"
    advice = "Check the location, or convert a corpus to it: cloudload convert INPUT "
    advice += shlex.quote(str(location)) + _advise_on_hub_name(location.remote)
    raise_if_nothing(error, location, what, noun="folder", advice=advice)


def _explain(location: Location, found: Survey | None) -> str | None:
    """Explain what a location contains if it has no index; None if that is unknown."""
    location = location.within(DEADLINE_S)
    remote = location.at(location.remote)
    try:
        if glob := find_glob(remote):
            # a survey of the location with its split is of another glob
            known = found if remote.url == location.url else None
            return _explain_glob(remote, glob, known or survey(remote))
        if _is_file(remote):
            return _explain_file(remote.url, location.split)
        return _explain_location(location, found or survey(location))
    except StoreError:
        return None


def _advise_on_hub_name(location: str) -> str:
    """The end of the advice for a location that may be the name of a Hugging Face dataset."""
    if not _BARE_HUB_NAME.fullmatch(location) or Path(location).parent.exists():
        return ""
    return (
        f". If {location} is a dataset on the Hugging Face Hub, run: cloudload convert "
        f"hf://{location} {_output_name(location)}"
    )


def _explain_glob(location: Location, glob: Glob, found: Survey) -> str | None:
    root = glob.folder
    files, folders = (
        [urls.join_url(root, name) for name in names if glob.matches(name)]
        for names in (found.files, found.datasets)
    )
    folders = [each.url for each in find_folders(location)] or folders
    if folders:
        return f"{location} is a glob of folders: {name_some(folders)}. Pass one of them"
    shown = f"{location} is a glob, but a loader reads globs only of datasets and Parquet files"
    if "" in found.datasets:
        return f"{shown}. Its folder has an index, so pass the folder: {redact(root)}"
    if not files:
        return (
            f"{shown}. The glob matches neither a file nor a folder. Check the location"
            if found.is_complete
            else None
        )
    advice = _advise_on_files(root, files)
    if advice and _RUN in advice:
        out = _output_beside(root)
        advice = _advise_to_index([location.url], files, out, _advise_on_input(location.url, out))
    return _end(f"{shown}. The glob matches {_count(found, files)}", advice)


def _explain_file(url: str, split: str | None) -> str:
    folder, _, name = url.rpartition("/")
    if name == shard_entries.INDEX_NAME or ".mds" in name:
        what = "the index" if name == shard_entries.INDEX_NAME else "a shard"
        return f"{redact(url)} is {what} of a dataset. Pass its folder: {redact(folder) or '.'}"
    advice = _advise_on_files(folder, [name])
    if advice and _RUN in advice:
        out = _output_beside(url)
        advice = _advise_on_input(url, out, split)
        advice = _advise_to_index([url], [name], out, advice) if split is None else advice
    return _end(f"{redact(url)} is a file, not the folder of an MDS dataset", advice)


def _explain_location(location: Location, found: Survey) -> str | None:
    """Explain a folder, or if the subfolder `split` does not exist, its parent folder."""
    if found.datasets:
        glob = find_glob(location)
        folder = urls.name_below(glob.folder, location.remote) if glob else location.split
        names = [urls.join_url(folder, name) if folder else name for name in found.datasets]
        missing = f"{location} has no {shard_entries.INDEX_NAME}"
        if glob:
            missing = f"{redact(location.remote)} has no split {location.split!r}, which is a glob"
        return _advise_split(missing, redact(location.remote), names)
    if (reason := _explain_folder(location.url, location.split, found)) or not location.split:
        return reason
    found = _survey_folder(location.at(location.remote))
    missing = f"{redact(location.remote)} has no split {location.split!r}"
    if "" in found.datasets:
        index = shard_entries.INDEX_NAME
        return f"{missing}, because it is itself a dataset with an {index}. Omit split"
    if found.datasets:
        return _advise_split(missing, redact(location.remote), found.datasets)
    return _explain_folder(location.remote, location.split, found)


def _advise_split(missing: str, url: str, names: Sequence[str]) -> str:
    noun = "folder has" if len(names) == 1 else "folders have"
    several = ""
    if len(names) > 1:
        folders = {name.rpartition("/")[0] for name in names}
        glob = urls.join_url(url, f"{min(folders)}/*" if min(folders) else "*")
        several = ". To read several datasets, pass a list"
        several += f", or {glob!r} for all of them" if len(folders) == 1 else ""
    return (
        f"{missing}, but {len(names):,} {noun} an index: {name_some(names)}. "
        f"Pass Stream({url!r}, split={names[0]!r}) as data, or "
        f"{urls.join_url(url, names[0])!r}{several}"
    )


def _explain_folder(url: str, split: str | None, found: Survey) -> str | None:
    """Explain a folder without datasets; None if it is empty."""
    files = found.files
    if found.unfinished:
        return (
            f"the conversion to {redact(urls.join_url(url, found.unfinished[0]))} has not "
            "finished. The "
            f"folder has a journal ({JOURNAL_FOLDER}), but no {shard_entries.INDEX_NAME}. Wait "
            "for the "
            "conversion, or run the same cloudload convert command again to resume it"
        )
    if found.tables and any(map(is_table_data, files)):
        folder, kind = found.tables[0]
        return refuse_table(redact(urls.join_url(url, folder.rstrip("/"))), kind)
    if _SAVED_DATASETS in files or set(files) >= _SAVED_DATASET:
        return _explain_saved(url, is_dict=_SAVED_DATASETS in files)
    if not files:
        return None
    shown = f"{redact(url)} is not an MDS dataset, because it has no {shard_entries.INDEX_NAME}"
    shown += f". Found {_count(found, files)}"
    if any(".mds" in name for name in files):
        return (
            f"{shown}. A writer stores {shard_entries.INDEX_NAME} last, so finish writing or "
            "copying the "
            "dataset. If several writers wrote shards, run streaming.base.util.merge_index"
        )
    return _end(shown, _advise_on_files(url, files, split))


def _explain_saved(url: str, *, is_dict: bool) -> str:
    """Explain a folder that `save_to_disk` of a `Dataset`, or of a `DatasetDict`, wrote."""
    shown, out = json.dumps(redact(url)), json.dumps(redact(_output_beside(url)))
    load = f"d = datasets.load_from_disk({shown})"
    call = f"cloudload.convert_to_mds(d, {out})"
    if is_dict:
        call = f"[cloudload.convert_to_mds(d, {out}, split=s) for s in d]"
    program = shlex.quote(f"import cloudload, datasets; {load}; {call}")
    return (
        f"{shown} is a dataset that datasets.save_to_disk wrote, not an MDS dataset. Convert it, "
        f"and pass {out} to the loader. {_RUN}python -c {program}"
    )


def _is_file(location: Location) -> bool:
    """Whether there is an object at a URL.

    An HTTP URL must also have a dot in its last part, because a web server may return a page for a
    folder.
    """
    url = location.url
    if location.is_local:
        return urls.local_path(url).is_file()
    if urls.scheme_of(url) in ("http", "https") and "." not in url.rpartition("/")[2]:
        return False
    try:
        location.at(url.rstrip("/")).open().close()
    except StoreError:
        return False
    return True


@dataclass(frozen=True)
class Survey:
    """The contents of a folder and its subfolders, without hidden files.

    Names are relative to the folder.
    """

    files: list[str]
    """Files in folders that are neither datasets nor unfinished conversions."""
    datasets: list[str]
    """Folders that have an index."""
    unfinished: list[str]
    """Folders that have the journal of a conversion, but no index."""
    tables: list[tuple[str, str]]
    """The folder and the kind of each Delta, Iceberg, or Hudi table."""
    is_complete: bool
    """Whether the survey covers every file and folder."""


def _survey_folder(location: Location) -> Survey:
    """Survey a folder and its subfolders, level by level, at most 20 folders in total.

    Sends one request per folder. A folder that does not exist is empty. Raises `StoreError` if a
    folder cannot be listed.
    """
    files: list[str] = []
    datasets: list[str] = []
    unfinished: list[str] = []
    tables: list[tuple[str, str]] = []
    waiting, is_complete = deque([""]), True
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            break
        folder = waiting.popleft()
        names = _peek(location.join(folder.rstrip("/")))
        is_complete = is_complete and len(names) < MOST_PEEKED
        if shard_entries.INDEX_NAME in names:
            datasets.append(folder.rstrip("/"))
        elif f"{JOURNAL_FOLDER}/" in names:
            unfinished.append(folder.rstrip("/"))
        else:
            tables += filter(None, (find_table(folder + name) for name in names))
            shown = [name for name in names if not hidden_part(name)]
            waiting += [folder + name for name in shown if name.endswith("/")]
            files += [folder + name for name in shown if not name.endswith("/")]
    return Survey(files, datasets, unfinished, tables, is_complete and not waiting)


def _peek(location: Location) -> list[str]:
    try:
        return location.peek()
    except StoreError as error:
        if error.is_missing:
            return []
        raise


def _count(found: Survey, files: Sequence[str]) -> str:
    return ("" if found.is_complete else "at least ") + _count_kinds(files)


def _end(text: str, advice: str | None) -> str:
    return f"{text}. {advice or 'Check the location'}"


def _count_kinds(names: Sequence[str]) -> str:
    """Count files by suffix, such as `5 .jsonl.gz and 1 without a suffix`."""
    counts = Counter(map(_suffix_of, names)).most_common()
    parts = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts[:_MOST_KINDS]]
    if rest := sum(count for _, count in counts[_MOST_KINDS:]):
        parts.append(f"{rest:,} others")
    return join_words(parts)


def _advise_on_files(location: str, names: Sequence[str], split: str | None = None) -> str | None:
    """The next step for the raw files `names` below the folder `location`, usually a command.

    The command converts the files of the most common format. It converts text only if there is no
    other format. Returns None if no file can be converted and none has a known extension.
    """
    taken = _choose_files(names)
    if not taken:
        reasons = ((name, reason_to_refuse(name)) for name in names)
        return next((f"{name} is {reason}" for name, reason in reasons if reason), None)
    out = _output_beside(location, split)
    splits = list(dict.fromkeys(name.partition("/")[0] for name in taken))
    if split is not None or len(splits) < 2 or not _SPLITS.issuperset(splits):
        inputs = _list_inputs(location, names, taken)
        advice = _convert_advice([_command(inputs, out, split)], out)
        return _advise_to_index(inputs, taken, out, advice) if split is None else advice
    commands = []
    for each in splits:
        below, own = (_list_below(each, files) for files in (names, taken))
        commands.append(
            _command(_list_inputs(urls.join_url(location, each), below, own), out, each)
        )
    return _convert_advice(commands, out)


def _advise_on_input(location: str, out: str, split: str | None = None) -> str:
    """The advice to convert one input of `cloudload convert`, such as a glob."""
    return _convert_advice([_command([location], out, split)], out)


def _advise_to_index(inputs: Sequence[str], names: Sequence[str], out: str, advice: str) -> str:
    """The advice to index JSON Lines files, or to convert them, which is the `advice` for others.

    `inputs` are those of the conversion to `out`, which reads the files `names`.
    """
    if len(inputs) > 1 or not all(map(virtual_index.is_json_lines, names)):
        return advice
    index = out.removesuffix(_OUTPUT_SUFFIX) + "-index"
    command = redact(shlex.join(["cloudload", "index", *inputs, index]))
    return (
        f"Index the files to read them where they are, and pass {redact(index)!r} to the loader: "
        f"{command} (with --text-key if the documents are not in the field 'text'). Or "
        f"{advice[0].lower()}{advice[1:]}"
    )


def _convert_advice(commands: Sequence[str], out: str) -> str:
    """Advise to convert raw data with commands that the user can paste."""
    return (
        f"Convert the raw data, and pass {redact(out)!r} to the loader. "
        f"{_RUN}{redact(' && '.join(commands))}"
    )


def _output_name(location: str) -> str:
    """A name for the folder of the converted dataset, such as `corpus-mds`."""
    parts = PurePosixPath(location.partition("://")[2] or location)
    return (parts.name.partition(".")[0] or parts.name or "corpus") + _OUTPUT_SUFFIX


def _output_beside(location: str, split: str | None = None) -> str:
    """The location to suggest for the converted dataset, which may not be inside `location`.

    If `location` ends in `split`, the result omits `split`, because the converter appends it. If
    cloudload cannot write beside `location`, the result is in the current folder.
    """
    location = location.rstrip("/")
    if not urls.is_local(location):
        location = redact(location)  # the name of the output must not contain a password
    if split and location.endswith(f"/{split}"):
        location = location[: -len(split) - 1]
    if urls.is_local(location):
        path = os.path.normpath(urls.local_path(location))
        path = os.path.abspath(path) if path.startswith(".") else path
        return os.path.join(os.path.dirname(path), _output_name(path))
    can_write = urls.scheme_of(location) in urls.BUCKET_SCHEMES and urls.split_url(location)[1]
    name = _output_name(location)
    return urls.join_url(location.rpartition("/")[0], name) if can_write else name


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
        inputs += [urls.join_url(location, name) for name in ([pattern] if suffix else own)]
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
