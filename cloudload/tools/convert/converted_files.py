"""The files from which a dataset was converted, as digests in its report.

    a file       s3://raw/day1/a.jsonl   1,024 bytes   tag 0x8f…
    its digest   hash of the location │ of location, size and tag │ of name, size and tag

An append leaves out the files that are in the dataset already, and refuses a file that changed
since. A file at another location is the same if it has the same name, size, and tag, as after a
move or a copy that keeps the time.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import xxhash

from cloudload.data import redact, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import conversion_plan
from cloudload.tools.convert.inputs import FolderFiles

CONVERTED = "converted"
"""The field of a stored report that has the digests."""
_PARTS = 3

Digests = np.ndarray[Any, np.dtype[np.uint64]]


def encode_files(inputs: Iterable[conversion_plan.PlannedInput]) -> str:
    """Return the digests of the files of inputs, to be stored in a report."""
    return _encode(_digests(inputs))


def join_files(before: Mapping[str, Any], inputs: Iterable[conversion_plan.PlannedInput]) -> str:
    """Return the digests in the report `before`, and then those of the files of inputs."""
    return _encode(np.concatenate([_decode(before), _digests(inputs)]))


def leave_out_converted(
    location: str, stored: Mapping[str, Any], folders: Iterable[FolderFiles]
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
                f"{file.display_name} changed since it was converted to {redact(location)}, so its "
                "earlier documents are in the dataset. Write new documents to a new file, and "
                "append that one, or convert all files again (--overwrite)"
            )
        if row[2] in names or (file.name in old and old[file.name] == file.bytes):
            raise ConvertError(
                f"{redact(location)} has a file with the name and size of {file.display_name}, and "
                "cloudload cannot tell whether it is the same. If not, rename the file to append"
            )
        return True

    kept = []
    for folder in folders:
        rows = _digests([conversion_plan.plan_input(folder)]).tolist()
        files = [file for at, file in enumerate(folder.files) if is_new(folder, rows[at], at)]
        kept.append(replace(folder, files=files))
    return kept


def check_same_files(
    location: str, stored: Mapping[str, Any], folders: Iterable[FolderFiles]
) -> None:
    """Raise `ConvertError` for a file that has the same name and size, but was not converted."""
    if name := find_changed(stored, folders):
        raise ConvertError(
            f"{redact(location)} is complete, but {name} is not the file from which it was "
            "converted, or was written again since then. Choose another output, or start over "
            "(--overwrite)"
        )


def find_changed(stored: Mapping[str, Any], folders: Iterable[FolderFiles]) -> str | None:
    """Return the name of a file that has the same name and size, but was not converted, or None."""
    known = _decode(stored)
    versions, names = {*known[:, 1].tolist()}, {*known[:, 2].tolist()}
    for folder in folders if CONVERTED in stored else ():
        for file, row in zip(
            folder.files, _digests([conversion_plan.plan_input(folder)]).tolist(), strict=False
        ):
            if file.tag and row[1] not in versions and row[2] not in names:
                return file.display_name
    return None


def _digests(inputs: Iterable[conversion_plan.PlannedInput]) -> Digests:
    """Return the digests of files: uint64 [files, 3]."""
    rows = [row for item in inputs if item.root != "-" for row in _digest_input(item)]
    return np.array(rows, np.uint64).reshape(-1, _PARTS)


def _digest_input(item: conversion_plan.PlannedInput) -> Iterator[tuple[int, ...]]:
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
