"""The objects that cloudload writes into a dataset's folder: their names, and their indexes.

    index.json  convert-report.json                   the dataset, and how it was converted
    shard.00000.mds.zstd  00003/shard.00000.mds.zstd  a shard; each segment has a folder
    .convert/plan.json    00003/.convert/00000.json   the journal of an unfinished conversion
    lengths/<key>/index-<data>.json                   token lengths
    lengths/<key>/00000-<digest>.lengths
    selections/<name>/selection.json                  a compiled selection of documents
    selections/<name>/00000-<digest>.bits
    .shard.00000.mds.zstd.4711.tmp                    a file whose writer was killed
    partitions.json                                   the datasets in the folders of this one

Whoever removes, replaces, or reports objects of a dataset's folder matches their names with these
patterns. Names are relative to the folder.

A new index is refused if it would hide other datasets, or be hidden by another index:

    out/index.json        a loader given `out` reads this dataset, and nothing below it
    out/val/index.json    hidden from readers of `out`
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from cloudload.data.mds import shard_entries
from cloudload.data.storage.redaction import redact
from cloudload.errors import ConvertError

T = TypeVar("T")

JOURNAL_FOLDER = ".convert"
"""The folder in which a conversion records its progress until it has stored the index."""
REPORT_NAME = "convert-report.json"
LENGTHS_FOLDER, SELECTIONS_FOLDER = "lengths", "selections"
PARTITIONS_NAME = "partitions.json"
"""The list of the datasets in the folders of a location, stored last by their conversion."""
_MOST_NAMED = 20

_SEGMENT = r"(\d{5,}/)?"
SHARD = re.compile(_SEGMENT + r"shard\.\d{5,}\.mds(\.\w+)?")
JOURNAL = re.compile(_SEGMENT + re.escape(JOURNAL_FOLDER) + "/.+")
LENGTHS = re.compile(
    rf"{LENGTHS_FOLDER}/(?P<key>[0-9a-f]{{16}})/"
    r"(index-[0-9a-f]{16}\.json|\d{5,}-[0-9a-f]{16}\.lengths(\.[0-9a-f]{12}\.\d+\.part)?)"
)
SELECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A name of a compiled selection."""
SELECTIONS = re.compile(
    rf"{SELECTIONS_FOLDER}/{SELECTION_NAME.pattern}/"
    r"(selection\.json|\d{5,}-[0-9a-f]{16}\.bits)(\.[0-9a-f]{12}\.\d+\.part)?"
)
_BESIDE_FILES = re.compile(f"(.*/)?({LENGTHS.pattern}|{SELECTIONS.pattern})")
TEMPORARY = re.compile(
    _SEGMENT + r"\.(shard\.\d{5,}\.mds.*|index\.json|convert-report\.json)\.\d+\.tmp"
)


def is_of_dataset(name: str) -> bool:
    """Whether an object belongs to a dataset: its index, report, shards, lengths, or selections.

    The journal of a conversion does not belong to a dataset, but to its location.
    """
    return name in (shard_entries.INDEX_NAME, REPORT_NAME) or any(
        pattern.fullmatch(name) for pattern in (SHARD, LENGTHS, SELECTIONS, TEMPORARY)
    )


def is_beside_files(name: str) -> bool:
    """Whether an object is what cloudload stores beside the files of any folder that it reads.

    Such are token lengths and selections. An index is not recognized by its name.
    """
    return _BESIDE_FILES.fullmatch(name) is not None


def decode_index(data: bytes, version: int, what: str, read: Callable[[Any], T]) -> T:
    """Decode the JSON file that lists the groups of lengths or of a selection.

    `read` gets the values of the file. Raises a `ValueError` that says what is wrong if the file
    has another format version, or is not `what`.
    """
    try:
        values = json.loads(data)
        if values["version"] != version:
            raise ValueError(
                f"the file has format version {values['version']!r}, but this version of "
                f"cloudload reads only {version}"
            )
        return read(values)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file is not {what} ({error!r})") from None


def refuse_to_hide(location: str, names: Iterable[str]) -> None:
    """Raise `ConvertError` if a location without an index has datasets in its folders.

    `names` are the names of all objects below the location.
    """
    suffix = f"/{shard_entries.INDEX_NAME}"
    folders = [name.removesuffix(suffix) for name in sorted(names) if name.endswith(suffix)]
    if not folders:
        return
    named = ", ".join(map(redact, folders[:_MOST_NAMED]))
    more = f", and {len(folders) - _MOST_NAMED:,} more" if len(folders) > _MOST_NAMED else ""
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
