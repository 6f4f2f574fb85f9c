"""Divide the files of inputs into partitions, by the folders in their paths.

    by       path                           partition
    folder   corpus/science/a.jsonl.zst     science       the first folder below the input
    lang     corpus/lang=de/2024/a.parquet  de            the value of the folder `lang=`

The name of a partition becomes the name of a folder, so it is taken from a single folder in the
path, as it is, and a name that is not safe for that is refused. So are names that a glob of the
datasets would leave out as hidden, such as `_x`, and names that differ only in case, because some
file systems would give them one folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cloudload.data import file_kinds, own_objects, redact, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records
from cloudload.tools.convert.config import SEGMENT_FOLDER
from cloudload.tools.convert.found_files import FolderFiles, file_name
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.inputs import unique_names
from cloudload.tools.convert.values import raw_path_field

FOLDER = "folder"
"""The name of the partition is that of the first folder below the input."""

_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def divide(
    listed: Sequence[FolderFiles | input_records.InputUnit], by: str
) -> dict[str, list[FolderFiles]]:
    """Divide the files of inputs into partitions, in the order of their names.

    Each partition has all inputs, some perhaps without files. Raises `ValueError` for an empty
    name, and for inputs that are not files, and `ConvertError` for a file that has no partition,
    and for partitions whose names differ only in case.
    """
    if not by:
        raise ValueError(
            "partition_by (--partition-by) is empty. Use folder, or the NAME of folders NAME=VALUE"
        )
    folders = [item for item in listed if isinstance(item, FolderFiles) and item.root != "-"]
    if len(folders) < len(listed):
        raise ValueError(
            "partition_by (--partition-by) accepts only files, because their paths name the "
            "partitions. First write the rows to a folder for each partition"
        )
    found: dict[str, list[FolderFiles]] = {}
    for place, item in enumerate(folders):
        for file in item.files:
            name = _name_partition(file, item.root, by)
            if name not in found:
                found[name] = [replace(each, files=[], hidden=()) for each in folders]
            # names are made unique within the partition, as if it were converted alone
            plain = replace(file, name=file_name(file.url, item.root))
            found[name][place].files.append(plain if len(folders) > 1 else file)
    check_case(found)
    return {name: _with_unique_names(found[name]) for name in sorted(found)}


def check_case(names: Iterable[str]) -> None:
    """Raise `ConvertError` if the names of two partitions differ only in case."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if (other := found.setdefault(name.lower(), name)) != name:
            raise ConvertError(
                f"the partitions {other!r} and {name!r} differ only in case, so a file system that "
                "ignores case would mix their datasets. Rename the folders of one of them"
            )


def _with_unique_names(folders: Sequence[FolderFiles]) -> list[FolderFiles]:
    named = unique_names([item.files for item in folders])
    return [replace(item, files=files) for item, files in zip(folders, named, strict=True)]


def _name_partition(file: InputFile, root: str, by: str) -> str:
    """Return the partition of a file. Raises `ConvertError` if it has none, or an unsafe name."""
    if by == FOLDER:
        first, slash, _ = urls.name_below(file.url, root).partition("/")
        name, wanted = first if slash else "", f"is not in a folder below {redact(root)}"
    else:
        name, wanted = raw_path_field(file.url, by) or "", f"has no folder {by}=VALUE in its path"
    if not name:
        raise ConvertError(f"{file.display_name} {wanted}, so it has no partition. {_advise(by)}")
    name = urls.utf8_name(name)
    if (
        _UNSAFE.search(name)
        or file_kinds.hidden_part(name)
        or SEGMENT_FOLDER.fullmatch(name)
        or name == own_objects.PARTITIONS_NAME
    ):
        raise ConvertError(
            f"{file.display_name} has the partition {name!r}, which cannot be the name of the "
            "folder of a dataset. Rename the folder of the file"
        )
    return name


def _advise(by: str) -> str:
    if by == FOLDER:
        return (
            "Move the file to a folder, or pass a glob of the files to convert, such as "
            "'corpus/*/*.jsonl'. The folders below the glob's first part without a wildcard are "
            "the partitions"
        )
    return (
        "Use --partition-by folder if each folder is a partition. To divide records by a field, "
        f"first write them to folders {by}=VALUE, as with DuckDB: "
        f"COPY (…) TO 'corpus' (FORMAT parquet, PARTITION_BY ({by}))"
    )
