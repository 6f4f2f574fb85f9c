"""List the inputs as one deterministic sequence of units.

    inputs   corpus/                 s3://b/more/*.gz   -         hf://owner/name
    files    a.jsonl, c.txt, d.txt   0.jsonl.gz         stdin
    units    a.jsonl │ c.txt, d.txt  0.jsonl.gz         stdin     rows of the dataset

Inputs keep the caller's order. The files of an input are sorted, except those of a folder that
`datasets.save_to_disk` wrote. They keep the dataset's order:

    Dataset        state.json, dataset_info.json, data-00000-of-00002.arrow, …
    DatasetDict    dataset_dict.json, train/state.json, train/…, test/…
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from cloudload.config import TEXT_KEY, Stream, choices
from cloudload.data import (
    ColumnChoice,
    codecs,
    contains_secrets,
    file_kinds,
    own_objects,
    parse_index,
    redact,
    shard_entries,
    urls,
    virtual_index,
)
from cloudload.errors import ConvertError, DatasetError
from cloudload.system import counted
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.found_files import FolderFiles, find_files, find_listed, root_of
from cloudload.tools.convert.hub_dataset import HubName, find_hub_files
from cloudload.tools.convert.indexed_shards import ShardIndex
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.input_records import InputUnit
from cloudload.tools.convert.listed_files import FileList, read_list
from cloudload.tools.convert.output_location import check_twice, is_hub_name
from cloudload.tools.convert.readers.arrow import ArrowUnit
from cloudload.tools.convert.readers.csv import CsvUnit
from cloudload.tools.convert.readers.json import JsonUnit
from cloudload.tools.convert.readers.lines import LinesUnit
from cloudload.tools.convert.readers.mds import MdsUnit
from cloudload.tools.convert.readers.parquet import ParquetUnit
from cloudload.tools.convert.readers.plain_rows import RowsUnit
from cloudload.tools.convert.readers.text import TextUnit
from cloudload.tools.convert.readers.webdataset import WebDatasetUnit
from cloudload.tools.convert.readers.wet import WetUnit

_MAX_BLOCK_FILES = 1024
_TEXTS = ("text", "lines")
_UNITS: dict[str, Callable[[InputFile, input_files.Range | None], InputUnit]] = {
    "jsonl": LinesUnit,
    "lines": LinesUnit,
    "parquet": ParquetUnit,
    "json": JsonUnit,
    "csv": CsvUnit,
    "tsv": CsvUnit,
    "arrow": ArrowUnit,
    "webdataset": WebDatasetUnit,
    "wet": WetUnit,
    "mds": MdsUnit,
}
"""Maps each format except `text` to the type of its units, which are files, or ranges of files."""

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"

_MARKS = (_STATE, _INFO, _SPLITS)


def join_inputs(
    inputs: Any,
    inputs_from: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    *,
    text_key: str | None = TEXT_KEY,
    tokens_key: str | None = None,
    all_columns: bool = False,
) -> Any:
    """Return the inputs, those of the list at `inputs_from`, or the index `like`.

    The other options are the columns that an index has. Raises `ValueError` if they are set without
    `like`, and the errors of `read_list`.
    """
    if like is not None:
        if tokens_key is not None and text_key != TEXT_KEY:
            raise ValueError("text_key and tokens_key are both set. Omit one of them")
        key = text_key if tokens_key is None else tokens_key
        choice = ColumnChoice(key, has_others=all_columns or key is None)
        return [ShardIndex(Stream(os.fspath(like)).url, choice)]
    if tokens_key is not None or all_columns:
        name = "tokens_key" if tokens_key else "all_columns"
        raise ValueError(f"{name} applies only to like. Set like, too, or omit {name}")
    return inputs if inputs_from is None else read_list(inputs, inputs_from)


def list_inputs(inputs: Any, format: str, split: str | None) -> list[FolderFiles | InputUnit]:
    """List the inputs in order: the files of each, or the unit of an input without files.

    `inputs` is one input or a list of them. An input is a path, URL or glob, `-` for stdin,
    `hf://NAME`, a `datasets` object, or an iterable of rows. Raises `ValueError` for anything else,
    an invalid `format` or `split`, and a file listed twice. Raises `ConvertError` or `StoreError`
    for an input that is not found or cannot be opened, and for a file whose name shows that it is
    not text.
    """
    if format not in choices.INPUT_FORMATS:
        raise ValueError(f"format is {format!r}. Use one of {', '.join(choices.INPUT_FORMATS)}")
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not several:
        raise ValueError("inputs is empty. Pass files, folders, globs, a dataset, or - for stdin")
    found = [_resolve(item, format, split) for item in several]
    named = iter(unique_names([item.files for item in found if isinstance(item, FolderFiles)]))
    return [
        replace(item, files=next(named)) if isinstance(item, FolderFiles) else item
        for item in found
    ]


def list_hidden(inputs: Iterable[FolderFiles | InputUnit]) -> list[str]:
    """List the files and folders that inputs from `list_inputs` leave out, in order."""
    return [name for item in inputs if isinstance(item, FolderFiles) for name in item.hidden]


def list_units(inputs: Iterable[FolderFiles | InputUnit], block_bytes: int) -> list[InputUnit]:
    """List the units of inputs from `list_inputs`, in order."""
    units: list[InputUnit] = []
    for item in inputs:
        if isinstance(item, FolderFiles):
            units.extend(group_units(map(input_files.FilePart, item.files), block_bytes))
        else:
            units.append(item)
    return units


def _resolve(item: Any, format: str, split: str | None) -> FolderFiles | InputUnit:
    if isinstance(item, ShardIndex):
        return item.find()
    if isinstance(item, FileList):
        return _choose_data(item.root, find_listed(item), format)
    if isinstance(item, str | Path):
        text = str(item)
        if text == "-":
            if format == "mds":
                raise ValueError("an MDS dataset cannot be read from stdin. Pass its folder or URL")
            form = "jsonl" if format == "auto" else format
            return FolderFiles("-", [InputFile("-", "stdin", None, form, None)])
        if is_hub_name(text):
            on_hub = find_hub_files(text, split)
            if on_hub is None:
                return _load_dataset(text, split)
            return _choose_data(text, on_hub, format)
        found = find_files(text)
        files = found.files
        if format == "mds" or (format == "auto" and is_mds_folder(files)):
            return replace(found, files=list_shards(text, files))
        found = _leave_out_own(text, found)
        files = found.files
        if format in ("auto", "arrow"):
            files = select_saved_files(text, files, split)
        if format == "auto":
            refuse_index(text, files)
        return _choose_data(text, replace(found, files=files), format)
    if isinstance(item, Mapping):
        return _split_of(item, split)
    if isinstance(item, Iterable):
        name = getattr(getattr(item, "info", None), "dataset_name", None)
        return RowsUnit(str(name or "row"), item)
    raise ValueError(
        f"{type(item).__name__} cannot be an input. Pass a path or URL, a datasets object, or an "
        "iterable of rows"
    )


def _leave_out_own(location: str, found: FolderFiles) -> FolderFiles:
    """Leave out what cloudload stores beside raw files: lengths, selections, and indexes of them.

    Raises `ConvertError` if there is nothing else.
    """
    own = {file.name for file in found.files if own_objects.is_beside_files(file.name)}
    own |= {file.name for file in found.files if _is_virtual_index(file)}
    files = [file for file in found.files if file.name not in own]
    if not files:
        raise ConvertError(
            f"{redact(location)} has only an index of files or token lengths, and no documents. To "
            "copy the shards of an index, pass it as like. To convert the files, pass "
            "their own location"
        )
    return replace(found, files=files, hidden=tuple(sorted({*found.hidden, *own})))


def _is_virtual_index(file: InputFile) -> bool:
    if file.name.rpartition("/")[2] != shard_entries.INDEX_NAME:
        return False
    return virtual_index.is_virtual(file.location.read(shard_entries.MOST_INDEX_BYTES))


def _split_of(datasets: Mapping[str, Any], split: str | None) -> InputUnit:
    if not all(
        hasattr(value, "__iter__") and not isinstance(value, str | bytes)
        for value in datasets.values()
    ):
        raise ValueError(
            "a dict cannot be an input. For rows in memory, pass an iterator: iter([{...}, ...])"
        )
    chosen = next(iter(datasets)) if split is None and len(datasets) == 1 else split
    if chosen is None or chosen not in datasets:
        raise ValueError(
            f"split is {chosen!r}, but the dataset's splits are {sorted(datasets)}. Set split to "
            "one of them"
        )
    return RowsUnit(chosen, datasets[chosen])


def _load_dataset(url: str, split: str | None) -> InputUnit:
    """Open a dataset without files of records as a stream of rows; see `hub_dataset`."""
    name, shown = HubName.parse(url, split), redact(url)
    try:
        import datasets
    except ImportError:
        raise ConvertError(
            f"reading {shown} needs the datasets package. Run: pip install datasets"
        ) from None
    try:
        loaded = datasets.load_dataset(
            name.repository,
            name.config,
            split=name.split,
            revision=name.revision,
            streaming=True,
        )
    except Exception as error:
        raise ConvertError(
            f"cannot load {shown} (split {name.split!r}). Check its name, config, and split, and "
            f"the connection. The error was {type(error).__name__}: {redact(str(error))}"
        ) from (None if contains_secrets(error) else error)
    return RowsUnit(PurePosixPath(name.repository).name, loaded)


def list_roots(inputs: Any, planned: Sequence[str] = ()) -> list[str]:
    """Return the root of each input, as in `list_inputs`. The inputs must be locations of files.

    `planned` are the roots in a plan, which have the commits of datasets on the Hugging Face Hub.
    """
    several = inputs if isinstance(inputs, list | tuple) else [inputs]
    roots = itertools.zip_longest(several, planned[: len(several)], fillvalue="")
    return [root if is_hub_name(str(item)) else _root_of(item) for item, root in roots]


def _root_of(item: Any) -> str:
    return item.root if isinstance(item, FileList) else root_of(str(item))


def _choose_data(location: str, found: FolderFiles, format: str) -> FolderFiles:
    """Choose the format of each file, and leave out those that only describe the data.

    Files such as `README.md` and `SHA256SUMS` are documents only where no file has records. Raises
    `ConvertError` for other text files among files of records, and for files that are not text.
    """
    files = [with_format(file, format) for file in found.files]
    data = [file for file in files if not file_kinds.is_about_data(file.name)]
    if any(file.format not in _TEXTS for file in data):
        about = [file.name for file in files if file_kinds.is_about_data(file.name)]
        files, hidden = data, tuple(sorted([*found.hidden, *about]))
        found = replace(found, hidden=hidden)
    if format == "auto":
        _refuse_binary(files)
        _refuse_mixture(location, found.root, files)
    return replace(found, files=files)


def _refuse_mixture(location: str, root: str, files: Sequence[InputFile]) -> None:
    """Raise `ConvertError` if one input has text files and files of records."""
    texts = [file for file in files if file.format == "text"]
    records = [file for file in files if file.format != "text"]
    if not texts or not records:
        return
    kinds = sorted({f"{file.format} ({file.compression or 'plain'})" for file in records})
    example = urls.join_url(redact(root), f"**/*{PurePosixPath(records[0].name).suffix}")
    raise ConvertError(
        f"{redact(location)} has {counted(len(texts), 'text file')}, such as {texts[0].name}, and "
        f"{counted(len(records), 'file')} of records: {', '.join(kinds)}. Each text file would be "
        f"one document. To leave files out, pass a glob, such as {example!r}. To convert all, pass "
        "a glob for each kind as separate inputs, or set format (--format) if all have records"
    )


def _refuse_binary(files: Iterable[InputFile]) -> None:
    """Raise `ConvertError` if the name of a file shows that it is not text."""
    refused = [
        (file.url, reason) for file in files if (reason := file_kinds.reason_to_refuse(file.name))
    ]
    if refused:
        url, reason = refused[0]
        others = f" (refused files in total: {len(refused):,})" if len(refused) > 1 else ""
        raise ConvertError(
            f"{redact(url)} is {reason}{others}. To leave files out, pass a glob such as "
            "'corpus/**/*.jsonl'. To read the file despite its name, set format (--format)"
        )


def with_format(file: InputFile, format: str) -> InputFile:
    """Choose the format of a file, and its compression. With `auto`, its name determines both."""
    extension, compression = file_kinds.split_name(file.name)
    if format == "auto":
        format = file_kinds.FORMATS_BY_EXTENSION.get(extension, "text")
    return replace(file, format=format, compression=compression)


def unique_names(inputs: list[list[InputFile]]) -> list[list[InputFile]]:
    """If two files have the same name, prefix every name with the index of its input in `inputs`.

    Names must be unique because IDs are derived from them. `inputs` are the files of each input
    that has files. Raises `ValueError` if a file is listed twice.
    """
    check_twice(inputs)
    names = Counter(file.name for files in inputs for file in files)
    if max(names.values(), default=0) == 1:
        return inputs
    for files in inputs:
        _refuse_equal_names(files)
    return [
        [replace(file, name=f"{index}/{file.name}") for file in files]
        for index, files in enumerate(inputs)
    ]


def _refuse_equal_names(files: Iterable[InputFile]) -> None:
    """Raise `ConvertError` if a file has the escaped name of another file of the same input."""
    first: dict[str, InputFile] = {}
    for file in files:
        if (other := first.setdefault(file.name, file)) is not file:
            raise ConvertError(
                f"the input has two files with the name {file.name!r} in UTF-8, {other.url!r} and "
                f"{file.url!r}. Rename one of them"
            )


def group_units(parts: Iterable[input_files.FilePart], block_bytes: int) -> Iterator[InputUnit]:
    """Group the parts of one input's files into units, in order.

    Consecutive text files share a unit of about `block_bytes` and at most 1,024 files. Every other
    part is a unit.
    """
    group: list[InputFile] = []
    for file, part in parts:
        full = len(group) == _MAX_BLOCK_FILES or input_records.sum_bytes(group) >= block_bytes
        if group and (full or file.format != "text"):
            yield TextUnit(tuple(group))
            group = []
        if file.format == "text":
            group.append(file)
        else:
            yield _UNITS[file.format](file, part)
    if group:
        yield TextUnit(tuple(group))


def refuse_index(location: str, files: Sequence[InputFile]) -> None:
    """Raise `ConvertError` if a location is the `index.json` of an MDS dataset, not a document."""
    if [file.name for file in files] != [shard_entries.INDEX_NAME] or not location.endswith(
        shard_entries.INDEX_NAME
    ):
        return
    with suppress(DatasetError):
        parse_index(
            files[0].location.read(shard_entries.MOST_INDEX_BYTES),
            redact(location),
        )
        raise ConvertError(
            f"{redact(location)} is the index of an MDS dataset. Pass the folder that contains it"
        )


def is_mds_folder(files: Sequence[InputFile]) -> bool:
    """Whether a folder's file names look like an MDS dataset."""
    has_index = any(file.name == shard_entries.INDEX_NAME for file in files)
    return has_index and any(".mds" in file.name for file in files)


def list_shards(folder: str, files: Sequence[InputFile]) -> list[InputFile]:
    """List the stored shards of the dataset in a folder, each with its entry in the index.

    Raises `ConvertError` if the index is missing or invalid, if a shard is missing or has the wrong
    size, or if a package that decompresses shards is not installed.
    """
    found = {file.name: file for file in files}
    if shard_entries.INDEX_NAME not in found:
        raise ConvertError(
            f"{redact(folder)} has no {shard_entries.INDEX_NAME}. Pass the folder of an MDS "
            "dataset, or omit format (--format)"
        )
    try:
        data = found[shard_entries.INDEX_NAME].location.read(shard_entries.MOST_INDEX_BYTES)
        shards = [shard for shard in parse_index(data, redact(folder)) if shard.samples]
        for compression in {shard.compression for shard in shards}:
            codecs.check_codec(compression or "")
    except DatasetError as error:
        raise ConvertError(str(error)) from error
    return [_input_file(folder, shard, found.get(shard.stored.name)) for shard in shards]


def _input_file(folder: str, shard: shard_entries.ShardInfo, found: InputFile | None) -> InputFile:
    stored = shard.stored
    if found is None or found.bytes != stored.bytes:
        fault = f"has {found.bytes:,} bytes" if found else "is missing"
        raise ConvertError(
            f"{redact(urls.join_url(folder, stored.name))} {fault}, but the index lists it with "
            f"{stored.bytes:,} bytes. Copy the dataset again"
        )
    return InputFile(found.url, stored.name, found.bytes, "mds", None, shard, found.tag)


def select_saved_files(
    folder: str, files: Sequence[InputFile], split: str | None
) -> list[InputFile]:
    """Return the Arrow files of a saved dataset in its order, or all `files` of another folder.

    `split` is the split of a `DatasetDict` to return. Raises `ValueError` if there is no such
    split, and `ConvertError` if a file is missing, or if a saved dataset is in a subfolder.
    """
    # index only the marker files, because a folder may have a million files but few markers
    by_name = {file.name: file for file in files if file.name.endswith(_MARKS)}
    prefix = ""
    if _SPLITS in by_name:
        prefix = _choose_split(folder, by_name[_SPLITS], split) + "/"
    elif _INFO not in by_name or _STATE not in by_name:
        if inner := [name for name in by_name if name.endswith(f"/{_STATE}")]:
            _check_not_saved(folder, inner[0].removesuffix(_STATE), by_name)
        return list(files)
    if prefix + _STATE not in by_name:
        raise _lacks(folder, prefix + _STATE, _SPLITS)
    by_name = {file.name: file for file in files}
    state = _read_json(by_name[prefix + _STATE])
    try:
        names = [prefix + str(file["filename"]) for file in state["_data_files"]]
        has_indices = bool(state.get("_indices_data_files"))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(by_name[prefix + _STATE], error) from error
    if has_indices:
        raise ConvertError(
            f"{redact(folder)} is a selection of rows that an old version of datasets saved. Load "
            "it with load_from_disk, and save it again with save_to_disk"
        )
    if missing := [name for name in names if name not in by_name]:
        raise _lacks(folder, missing[0], prefix + _STATE)
    return [by_name[name] for name in names]


def _lacks(folder: str, name: str, listing: str) -> ConvertError:
    return ConvertError(
        f"{redact(folder)} lacks {name!r}, which its {listing} lists. Copy the dataset again"
    )


def _choose_split(folder: str, listing: InputFile, split: str | None) -> str:
    listed = _read_json(listing)
    try:
        splits = [str(name) for name in listed["splits"]]
    except (KeyError, TypeError) as error:
        raise _unreadable(listing, error) from error
    chosen = splits[0] if split is None and len(splits) == 1 else split
    if chosen is None or chosen not in splits:
        raise ValueError(
            f"split is {chosen!r}, but the splits of {redact(folder)} are {sorted(splits)}. Set "
            "split to one of them"
        )
    return chosen


def _check_not_saved(folder: str, inner: str, by_name: dict[str, InputFile]) -> None:
    if inner + _INFO in by_name:
        raise ConvertError(
            f"the input {redact(folder)} contains {redact(urls.join_url(folder, inner))}, a "
            "dataset that save_to_disk wrote. Pass that dataset as a separate input"
        )


def _read_json(file: InputFile) -> Any:
    try:
        return json.loads(file.location.read())
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: InputFile, error: Exception) -> ConvertError:
    return ConvertError(
        f"{redact(file.url)} does not have the format that save_to_disk writes ({error!r:.200}). "
        "Copy the dataset again, or pass its Arrow files one by one"
    )
