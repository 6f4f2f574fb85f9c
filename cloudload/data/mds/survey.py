"""Survey a folder with few requests: its files, and the datasets in it that a new index would hide.

    corpus/    a.jsonl  .git/  train/     files        a.jsonl
    train/     index.json  shard…         datasets     train
    val/       .convert/  shard…          unfinished   val

A new index is refused if it would hide other datasets, or be hidden by another index:

    out/index.json        a loader given `out` reads this dataset, and nothing below it
    out/val/index.json    hidden from readers of `out`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloudload.data.file_kinds import find_table, hidden_part
from cloudload.data.mds import shard_entries
from cloudload.data.storage.locations import MOST_PEEKED, Location
from cloudload.data.storage.redaction import redact
from cloudload.errors import ConvertError, StoreError

JOURNAL_FOLDER = ".convert"
"""The folder in which a conversion records its progress until it has stored the index."""
_MOST_FOLDERS = 20

MAX_LISTED = 20


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


def survey_folder(location: Location) -> Survey:
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


def refuse_to_hide(location: str, names: Iterable[str]) -> None:
    """Raise `ConvertError` if a location without an folder has datasets in its folders.

    `names` are the names of all objects below the location.
    """
    suffix = f"/{shard_entries.INDEX_NAME}"
    folders = [name.removesuffix(suffix) for name in sorted(names) if name.endswith(suffix)]
    if not folders:
        return
    named = ", ".join(map(redact, folders[:MAX_LISTED]))
    more = f", and {len(folders) - MAX_LISTED:,} more" if len(folders) > MAX_LISTED else ""
    folder = redact(location)
    raise ConvertError(
        f"{folder} has datasets in its subfolders: {named}{more}. A dataset in {folder} itself "
        "would hide them. Set split (--split NAME) to write to a subfolder, or choose another "
        "output"
    )


def describe_hidden_datasets(location: str, splits: Sequence[str]) -> str:
    """Return an error message about new splits below a location that is itself a dataset."""
    noun = "split" if len(splits) == 1 else "splits"
    return (
        f"{redact(location)} has an {shard_entries.INDEX_NAME}, so it is a dataset that would "
        f"hide the {noun} "
        f"{', '.join(map(redact, splits))}. Choose another output, or move the dataset to a "
        "subfolder"
    )
