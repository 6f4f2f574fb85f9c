"""Refuse a new index that would hide other datasets, or be hidden by another index.

out/index.json        a loader given `out` reads this dataset, and nothing below it
out/val/index.json    hidden from readers of `out`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudload.data.mds.index import INDEX_NAME
from cloudload.data.storage.redaction import redact
from cloudload.errors import ConvertError

MAX_LISTED = 20


def refuse_to_hide(location: str, names: Iterable[str]) -> None:
    """Raise `ConvertError` if a location without an index has datasets in its folders.

    `names` are the names of all objects below the location.
    """
    suffix = f"/{INDEX_NAME}"
    folders = [name.removesuffix(suffix) for name in sorted(names) if name.endswith(suffix)]
    if not folders:
        return
    named = ", ".join(map(redact, folders[:MAX_LISTED]))
    more = f", and {len(folders) - MAX_LISTED:,} more" if len(folders) > MAX_LISTED else ""
    place = redact(location)
    raise ConvertError(
        f"{place} has datasets in its subfolders: {named}{more}. A dataset in {place} itself would "
        "hide them. Set split (--split NAME) to write to a subfolder, or choose another output"
    )


def describe_hidden(location: str, splits: Sequence[str]) -> str:
    """Return an error message about new splits below a location that is itself a dataset."""
    noun = "split" if len(splits) == 1 else "splits"
    return (
        f"{redact(location)} has an {INDEX_NAME}, so it is a dataset that would hide the {noun} "
        f"{', '.join(map(redact, splits))}. Choose another output, or move the dataset to a "
        "subfolder"
    )
