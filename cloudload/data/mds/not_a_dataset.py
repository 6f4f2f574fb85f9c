"""Explain why a location is not an MDS dataset, and say what to pass or run instead.

    corpus/a.jsonl.gz …         cloudload convert corpus corpus-mds
    hf://owner/name             cloudload convert hf://owner/name name-mds
    corpus/train/index.json     split="train"
    corpus/index.json           its folder
    corpus/.convert/ …          the same conversion again

A location is inspected only after its index was not found. If the store does not allow cloudload to
inspect it, there is no explanation, and the caller raises its own error.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloudload.data.file_kinds import is_table_data, refuse_table
from cloudload.data.mds.index import INDEX_NAME
from cloudload.data.mds.location import Location
from cloudload.data.mds.raw_files import (
    RUN,
    advise_on_files,
    advise_on_input,
    count_kinds,
    join_words,
    output_beside,
    output_name,
)
from cloudload.data.mds.survey import JOURNAL_FOLDER, Survey, survey_folder
from cloudload.data.storage.base import Retry
from cloudload.data.storage.globs import Glob, find_glob
from cloudload.data.storage.objects import open_object
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.urls import is_local, join_url, local_path, scheme_of
from cloudload.errors import StoreError

_MOST_NAMED = 8
_DEADLINE_S = 10.0
_HUB_NAME = re.compile(r"hf://(?!(?:datasets|models|spaces|buckets)/)[^/?@]+(/[^/?@]+)?(\?.*)?")
_BARE_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PAGE = re.compile(r"https?://(?:www\.)?huggingface\.co/datasets/([^/?#@]+/[^/?#@]+)/?")
_SAVED_DATASET = {"state.json", "dataset_info.json"}
_SAVED_DATASETS = "dataset_dict.json"


def explain_hub_name(location: Location) -> str | None:
    """Explain a location that is the name of a Hugging Face dataset; None for other locations.

    This sends no request.
    """
    page = _HUB_PAGE.fullmatch(location.remote)
    url = f"hf://{page[1]}" if page else location.remote
    if not _HUB_NAME.fullmatch(url):
        return None
    name = url.partition("?")[0].removeprefix("hf://")
    return (
        f"{redact(location.remote)} is a dataset on the Hugging Face Hub, not an MDS dataset (for "
        f"a repository of MDS shards, pass hf://datasets/{name}). "
        f"{advise_on_input(url, output_name(name), location.split)}"
    )


def advise_on_hub_name(location: str) -> str:
    """The end of the advice for a location that may be the name of a Hugging Face dataset."""
    if not _BARE_HUB_NAME.fullmatch(location) or Path(location).parent.exists():
        return ""
    return (
        f". If {location} is a dataset on the Hugging Face Hub, run: cloudload convert "
        f"hf://{location} {output_name(location)}"
    )


def explain_not_a_dataset(location: Location, retry: Retry) -> str | None:
    """Explain what a location contains if it has no index; None if that is unknown."""
    retry = replace(retry, deadline_s=min(retry.deadline_s, _DEADLINE_S))
    try:
        if glob := find_glob(location.remote, retry):
            return _explain_glob(location.remote, glob, retry)
        if _is_file(location.remote, retry):
            return _explain_file(location.remote, location.split)
        return _explain_location(location, retry)
    except StoreError:
        return None


def _explain_glob(location: str, glob: Glob, retry: Retry) -> str | None:
    root, found = glob.folder, survey_folder(glob.folder, retry)
    files, folders = (
        [join_url(root, name) for name in names if glob.matches(name)]
        for names in (found.files, found.datasets)
    )
    shown = f"{redact(location)} is a glob, but a loader reads only folders of MDS datasets"
    if folders:
        return f"{shown}. Pass a list of these folders: {_name_some(folders)}"
    if not files:
        return (
            f"{shown}. The glob matches no file. Check the location" if found.is_complete else None
        )
    advice = advise_on_files(root, files)
    if advice and RUN in advice:
        advice = advise_on_input(location, output_beside(root))
    return _end(f"{shown}. The glob matches {_count(found, files)}", advice)


def _explain_file(url: str, split: str | None) -> str:
    folder, _, name = url.rpartition("/")
    if name == INDEX_NAME or ".mds" in name:
        what = "the index" if name == INDEX_NAME else "a shard"
        return f"{redact(url)} is {what} of a dataset. Pass its folder: {redact(folder) or '.'}"
    advice = advise_on_files(folder, [name])
    if advice and RUN in advice:
        advice = advise_on_input(url, output_beside(url), split)
    return _end(f"{redact(url)} is a file, not the folder of an MDS dataset", advice)


def _explain_location(location: Location, retry: Retry) -> str | None:
    """Explain a folder, or if the subfolder `split` does not exist, its parent folder."""
    found = survey_folder(location.url, retry)
    if found.datasets:
        prefix = f"{location.split}/" if location.split else ""
        names = [prefix + name for name in found.datasets]
        missing = f"{redact(location.url)} has no {INDEX_NAME}"
        return _advise_split(missing, redact(location.remote), names)
    if (reason := _explain_folder(location.url, location.split, found)) or not location.split:
        return reason
    found = survey_folder(location.remote, retry)
    missing = f"{redact(location.remote)} has no split {location.split!r}"
    if "" in found.datasets:
        return f"{missing}, because it is itself a dataset with an {INDEX_NAME}. Omit split"
    if found.datasets:
        return _advise_split(missing, redact(location.remote), found.datasets)
    return _explain_folder(location.remote, location.split, found)


def _advise_split(missing: str, url: str, names: Sequence[str]) -> str:
    noun = "folder has" if len(names) == 1 else "folders have"
    several = ". To read several datasets, pass a list" if len(names) > 1 else ""
    return (
        f"{missing}, but {len(names):,} {noun} an index: {_name_some(names)}. "
        f"Pass Stream({url!r}, split={names[0]!r}) as data, or {join_url(url, names[0])!r}{several}"
    )


def _explain_folder(url: str, split: str | None, found: Survey) -> str | None:
    """Explain a folder without datasets; None if it is empty."""
    files = found.files
    if found.unfinished:
        return (
            f"the conversion to {redact(join_url(url, found.unfinished[0]))} has not finished. The "
            f"folder has a journal ({JOURNAL_FOLDER}), but no {INDEX_NAME}. Wait for the "
            "conversion, or run the same cloudload convert command again to resume it"
        )
    if found.tables and any(map(is_table_data, files)):
        folder, kind = found.tables[0]
        return refuse_table(redact(join_url(url, folder.rstrip("/"))), kind)
    if _SAVED_DATASETS in files or set(files) >= _SAVED_DATASET:
        return _explain_saved(url, is_dict=_SAVED_DATASETS in files)
    if not files:
        return None
    shown = f"{redact(url)} is not an MDS dataset, because it has no {INDEX_NAME}"
    shown += f". Found {_count(found, files)}"
    if any(".mds" in name for name in files):
        return (
            f"{shown}. A writer stores {INDEX_NAME} last, so finish writing or copying the "
            "dataset. If several writers wrote shards, run streaming.base.util.merge_index"
        )
    return _end(shown, advise_on_files(url, files, split))


def _explain_saved(url: str, *, is_dict: bool) -> str:
    """Explain a folder that `save_to_disk` of a `Dataset`, or of a `DatasetDict`, wrote."""
    shown, out = json.dumps(redact(url)), json.dumps(redact(output_beside(url)))
    load = f"d = datasets.load_from_disk({shown})"
    call = f"cloudload.convert_to_mds(d, {out})"
    if is_dict:
        call = f"[cloudload.convert_to_mds(d, {out}, split=s) for s in d]"
    program = shlex.quote(f"import cloudload, datasets; {load}; {call}")
    return (
        f"{shown} is a dataset that datasets.save_to_disk wrote, not an MDS dataset. Convert it, "
        f"and pass {out} to the loader. {RUN}python -c {program}"
    )


def _is_file(url: str, retry: Retry) -> bool:
    """Whether there is an object at a URL.

    An HTTP URL must also have a dot in its last part, because a web server may return a page for a
    folder.
    """
    if is_local(url):
        return local_path(url).is_file()
    if scheme_of(url) in ("http", "https") and "." not in url.rpartition("/")[2]:
        return False
    try:
        open_object(url.rstrip("/"), retry).close()
    except StoreError:
        return False
    return True


def _count(found: Survey, files: Sequence[str]) -> str:
    return ("" if found.is_complete else "at least ") + count_kinds(files)


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return join_words([*map(redact, names[:_MOST_NAMED]), *[f"{more:,} more"] * (more > 0)])


def _end(text: str, advice: str | None) -> str:
    return f"{text}. {advice or 'Check the location'}"
