"""List the files of a folder that `datasets.save_to_disk` wrote, in the dataset's order.

Dataset        state.json, dataset_info.json, data-00000-of-00002.arrow, …
DatasetDict    dataset_dict.json, train/state.json, train/…, test/…
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cloudload.data.storage.objects import read_object
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import join_url
from cloudload.errors import ConvertError
from cloudload.tools.convert.found_files import FoundFile

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"

_MARKS = (_STATE, _INFO, _SPLITS)


def select_saved_files(
    folder: str, files: Sequence[FoundFile], split: str | None
) -> list[FoundFile]:
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


def _choose_split(folder: str, listing: FoundFile, split: str | None) -> str:
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


def _check_not_saved(folder: str, inner: str, by_name: dict[str, FoundFile]) -> None:
    if inner + _INFO in by_name:
        raise ConvertError(
            f"the input {redact(folder)} contains {redact(join_url(folder, inner))}, a dataset "
            "that save_to_disk wrote. Pass that dataset as a separate input"
        )


def _read_json(file: FoundFile) -> Any:
    try:
        return json.loads(read_object(file.url))
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: FoundFile, error: Exception) -> ConvertError:
    return ConvertError(
        f"{redact(file.url)} does not have the format that save_to_disk writes ({error!r:.200}). "
        "Copy the dataset again, or pass its Arrow files one by one"
    )
