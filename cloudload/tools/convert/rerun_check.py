"""What a rerun must match: the recipe and the inputs of a conversion, and every input file.

The claim of a conversion is its recipe and a digest of its inputs. If the digest differs, the names
and sizes of the input files show which of them changed:

    before   {"a.jsonl": 120, "b.jsonl": 80}
    now      {"a.jsonl": 140, "c.jsonl": 80}
    differ   a.jsonl had 120 bytes and now has 140, b.jsonl is gone, c.jsonl is new

The report of a dataset has digests of each file from which it was converted:

    a file       s3://raw/day1/a.jsonl   1,024 bytes   tag 0x8f…
    its digest   hash of the location │ of location, size and tag │ of name, size and tag

An append leaves out the files that are in the dataset already, and refuses a file that changed
since. A file at another location is the same if it has the same name, size, and tag, as after a
move or a copy that keeps the time.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import xxhash

from cloudload.data import Location, redact, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records
from cloudload.tools.convert.conversion_report import MAX_LISTED
from cloudload.tools.convert.found_files import FolderFiles

LENGTHS_FIELD = "lengths"
"""The field of a claim's recipe with the key of the token lengths. Absent without a tokenizer."""
LIST_FIELD = "inputs_from"
"""The field of a claim's inputs with the digest of a list of files. Absent without a list."""
SEGMENT_BYTES = "segment_bytes"
"""The field of a claim's recipe that a conversion of one segment lacks."""

MOST_FILES = 10_000  # limits the size of the journal and the report, which list the files
_SHOWN = 5

CONVERTED = "converted"
"""The field of a stored report that has the digests."""
_PARTS = 3

Digests = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class PlannedInput:
    """The files of one input as parallel lists: names below `root`, sizes in bytes, and tags."""

    root: str
    names: list[str]
    sizes: list[int]
    tags: list[str]
    hidden: int = 0
    """The number of hidden files and folders, which are left out."""
    hidden_names: list[str] = field(default_factory=list)
    """The names of the first 20 of them."""


def plan_input(item: FolderFiles) -> PlannedInput:
    """Return the part of a plan that describes the files of an input."""
    return PlannedInput(
        redact(item.root),
        [_name(item.root, file.url) for file in item.files],
        [file.bytes or 0 for file in item.files],
        [file.tag for file in item.files],
        len(item.hidden),
        list(item.hidden[:MAX_LISTED]),
    )


def _name(root: str, url: str) -> str:
    if url == root:
        return ""
    return (
        PurePosixPath(url).relative_to(root).as_posix() if urls.is_local(root) else url[len(root) :]
    )


def omit(recipe: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    """Return a recipe without some fields.

    `SEGMENT_BYTES` does not affect a single segment, and `LENGTHS_FIELD` may differ in an append.
    """
    return {key: value for key, value in recipe.items() if key not in fields}


def compare_claims(
    location: Location,
    stored: Mapping[str, Any],
    claim: Mapping[str, Any],
    files_before: Any = None,
    files_now: Mapping[str, int | None] | None = None,
) -> None:
    """Raise `ConvertError` if `claim` differs from the one `stored` in a report, config or plan.

    `files_before` and `files_now` map file names to sizes, so that the error can list the changes.
    """
    for part in ("recipe", "inputs"):
        for key in _list_keys(part, stored, claim):
            before, now = stored[part].get(key), claim[part].get(key)
            if before == now or (key == SEGMENT_BYTES and None in (before, now)):
                continue
            change = f"{key} was {before!r} and is now {now!r}"
            if part == "inputs":
                change = describe_changes(files_before, files_now or {}) or change
            raise ConvertError(
                f"{location} belongs to a conversion with different inputs or options: "
                f"{change}. Run with the original inputs and options, choose another output, or "
                "start over (--overwrite)"
            )


def _list_keys(part: str, stored: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    """Return the keys to compare. If the claim has a recipe, they include the stored recipe's."""
    is_whole = part == "recipe" and claim[part]
    return list(claim[part] | stored[part]) if is_whole else list(claim[part])


def identify_inputs(units: Sequence[input_records.InputUnit], *, with_tags: bool) -> dict[str, Any]:
    """Return a digest of names and sizes, with totals, by which a rerun recognizes its input.

    With `with_tags`, adds a digest of tags, which also differs if a file has the same name and size
    but different contents.
    """
    files = [file for unit in units for file in unit.files]
    listing = (
        [unit.name, unit.size, [[file.name, file.bytes] for file in unit.files]] for unit in units
    )
    found = {
        "names and sizes": _digest(listing),
        "files": len(files),
        "bytes": input_records.sum_bytes(files),
    }
    return found | {"tags": _digest(file.tag for file in files)} if with_tags else found


def _digest(items: Iterable[Any]) -> str:
    """Hash the JSON of a list without storing the whole list in memory."""
    left, hashed, separator = iter(items), hashlib.sha256(b"["), ""
    while some := list(itertools.islice(left, 1_000)):
        hashed.update((separator + json.dumps(some)[1:-1]).encode())
        separator = ", "
    hashed.update(b"]")
    return hashed.hexdigest()[:32]


def list_sizes(units: Iterable[input_records.InputUnit]) -> dict[str, int | None]:
    """Map file names to sizes in bytes. Empty if there are more than 10,000 files."""
    files = (file for unit in units for file in unit.files)
    sizes = {file.name: file.bytes for file in itertools.islice(files, MOST_FILES + 1)}
    return sizes if len(sizes) <= MOST_FILES else {}


def describe_changes(before: Any, now: Mapping[str, int | None]) -> str:
    """Describe the files that differ. Returns "" if either list of files is unknown."""
    if not isinstance(before, Mapping) or not before or not now:
        return ""
    changes = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            changes.append(f"{name} is gone")
        elif name not in before:
            changes.append(f"{name} is new")
        elif before[name] != now[name]:
            changes.append(f"{name} had {before[name]} bytes and now has {now[name]}")
    if not changes and list(before) != list(now):
        changes.append("the files are in a different order")
    more = f", and {len(changes) - _SHOWN:,} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def encode_files(inputs: Iterable[PlannedInput]) -> str:
    """Return the digests of the files of inputs, to be stored in a report."""
    return _encode(_digests(inputs))


def join_files(before: Mapping[str, Any], inputs: Iterable[PlannedInput]) -> str:
    """Return the digests in the report `before`, and then those of the files of inputs."""
    return _encode(np.concatenate([_decode(before), _digests(inputs)]))


def leave_out_converted(
    location: Location, stored: Mapping[str, Any], folders: Iterable[FolderFiles]
) -> list[FolderFiles]:
    """Return the inputs without the files that the dataset with the report `stored` has already.

    Raises `ConvertError` for a file that changed since it was converted, and for one that may be in
    the dataset, because its store has no tags.
    """
    locations, versions, names = ({*column} for column in _decode(stored).T.tolist())
    old = stored["files"] if CONVERTED not in stored else {}

    def is_new(folder: FolderFiles, row: list[int], at: int) -> bool:
        file = folder.files[at]
        if row[1] in versions or (file.tag and row[2] in names):
            return False
        if row[0] in locations:
            raise ConvertError(
                f"{file.display_name} changed since it was converted to {location}, so its "
                "earlier documents are in the dataset. Write new documents to a new file, and "
                "append that one, or convert all files again (--overwrite)"
            )
        if row[2] in names or (file.name in old and old[file.name] == file.bytes):
            raise ConvertError(
                f"{location} has a file with the name and size of {file.display_name}, and "
                "cloudload cannot tell whether it is the same. If not, rename the file to append"
            )
        return True

    kept = []
    for folder in folders:
        rows = _digests([plan_input(folder)]).tolist()
        files = [file for at, file in enumerate(folder.files) if is_new(folder, rows[at], at)]
        kept.append(replace(folder, files=files))
    return kept


def check_same_files(
    location: Location, stored: Mapping[str, Any], folders: Iterable[FolderFiles]
) -> None:
    """Raise `ConvertError` for a file that has the same name and size, but was not converted."""
    if name := find_changed(stored, folders):
        raise ConvertError(
            f"{location} is complete, but {name} is not the file from which it was "
            "converted, or was written again since then. Choose another output, or start over "
            "(--overwrite)"
        )


def find_changed(stored: Mapping[str, Any], folders: Iterable[FolderFiles]) -> str | None:
    """Return the name of a file that has the same name and size, but was not converted, or None."""
    known = _decode(stored)
    versions, names = {*known[:, 1].tolist()}, {*known[:, 2].tolist()}
    for folder in folders if CONVERTED in stored else ():
        for file, row in zip(folder.files, _digests([plan_input(folder)]).tolist(), strict=False):
            if file.tag and row[1] not in versions and row[2] not in names:
                return file.display_name
    return None


def _digests(inputs: Iterable[PlannedInput]) -> Digests:
    """Return the digests of files: uint64 [files, 3]."""
    rows = [row for item in inputs if item.root != "-" for row in _digest_input(item)]
    return np.array(rows, np.uint64).reshape(-1, _PARTS)


def _digest_input(item: PlannedInput) -> Iterator[tuple[int, ...]]:
    root = os.path.realpath(urls.local_path(item.root)) if urls.is_local(item.root) else item.root
    for name, size, tag in zip(item.names, item.sizes, item.tags, strict=True):
        url = urls.join_url(root, name) if name else root
        version = f"{size} {tag}"
        texts = url, f"{version} {url}", f"{version} {name or PurePosixPath(root).name}"
        yield tuple(
            xxhash.xxh3_64_intdigest(text.encode(errors="surrogateescape")) for text in texts
        )


def _encode(digests: Digests) -> str:
    return base64.b64encode(digests.astype("<u8").tobytes()).decode()


def _decode(stored: Mapping[str, Any]) -> Digests:
    data = base64.b64decode(stored.get(CONVERTED, ""))
    return np.frombuffer(data, "<u8").reshape(-1, _PARTS)
