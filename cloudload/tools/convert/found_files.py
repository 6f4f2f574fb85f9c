"""Find the files of one input: a file, a folder, or a glob.

    corpus/   b.jsonl  a.jsonl  _temporary/0/a.jsonl  .git/…  _SUCCESS
    files     a.jsonl  b.jsonl
    hidden    .git/  _SUCCESS  _temporary/

A folder or a glob that selects data files of a Delta, Iceberg, or Hudi table is refused. The files
of one of its versions can be inputs, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from cloudload.data import (
    Location,
    file_kinds,
    file_selection,
    globs,
    nearby,
    redact,
    urls,
)
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.input_files import InputFile
from cloudload.tools.convert.listed_files import FileList

_LOGS = ("_delta_log", ".hoodie", "metadata")
_TABLE_SCHEMES = (*urls.BUCKET_SCHEMES, "file", "az", "abfs", "abfss", "hdfs", "oci", "dbfs")
_MOST_ABOVE = 8


@dataclass(frozen=True)
class FolderFiles:
    """The files of one input, in order, and what was left out."""

    root: str
    """The file, the folder, or the folder of the glob, as a `plain_location`: the common prefix of
    the files' URLs. After secrets are removed, it identifies the input."""
    files: list[InputFile]
    hidden: tuple[str, ...] = ()
    """Files and folders that are not data, sorted: hidden, uncommitted, or about the data, such as
    `README.md`. The name of a folder ends in `/`."""


def root_of(location: str) -> str:
    """Return the root of a path, URL, or glob; see `FolderFiles`."""
    glob = globs.find_glob(Location(location))
    return glob.folder if glob else urls.plain_location(location)


def find_listed(found: FileList) -> FolderFiles:
    """Return the files of a list."""
    files = [
        InputFile(each.url, file_name(each.url, found.root), each.bytes, tag=each.tag)
        for each in found.find()
    ]
    return FolderFiles(found.root, files)


def file_name(url: str, root: str) -> str:
    """Return the name of an input's file below its root, or its base name if it is the root."""
    if url != root:
        return urls.utf8_name(urls.name_below(url, root))
    is_web = urls.scheme_of(url) in ("http", "https")
    return urls.utf8_name(PurePosixPath(url.partition("?")[0] if is_web else url).name)


def find_files(location: str) -> FolderFiles:
    """Find the files at a path, URL, or glob, sorted by URL. Their format is not chosen yet.

    Raises `ConvertError` if there are no files, or if they belong to a table, and `StoreError` if
    the location, or a folder or link in it, cannot be listed.
    """
    urls.check_location(location)
    glob = globs.find_glob(Location(location))
    root = glob.folder if glob else urls.plain_location(location)
    if glob and urls.scheme_of(root) in ("http", "https"):
        raise ConvertError(
            f"{redact(location)} is a glob, but cloudload does not list the files of web servers. "
            "Pass the URL of each file, or a list of them (--inputs-from)"
        )
    listing = _list_input(root, file_selection.FileSelection(root, glob))
    if not listing.files:
        raise ConvertError(_explain_none(location, root, glob, listing.hidden))
    files = [
        InputFile(each.url, file_name(each.url, root), each.bytes, tag=each.tag)
        for each in listing.files
    ]
    if [file.url for file in files] != [root]:
        _refuse_tables(root, files, listing.tables)
    return FolderFiles(root, files, tuple(sorted(listing.hidden)))


def _list_input(root: str, selection: file_selection.FileSelection) -> file_selection.FileListing:
    try:
        return Location(root).collect(selection.collect, wanted=selection.wants)
    except StoreError as error:
        what = f"read the input {redact(root)}"
        nearby.raise_if_nothing(error, Location(root), what, noun="file or folder")
        raise


def _explain_none(location: str, root: str, glob: globs.Glob | None, hidden: Iterable[str]) -> str:
    reason = None if glob else nearby.explain_nothing(Location(root), "file or folder")
    if names := sorted(hidden):
        reason = (
            f"it has only hidden or uncommitted files, such as {redact(names[0])}. To read files "
            "whose names begin with a dot or an underscore, pass the files, their folder, or a "
            "glob whose names begin with it"
        )
    reason = reason or "Check the location"
    return f"found no files in {redact(location)}. {reason[0].upper()}{reason[1:]}"


# ---------------------------------------------------------------- tables


def _refuse_tables(root: str, files: Iterable[InputFile], tables: Mapping[str, str]) -> None:
    """Raise `ConvertError` if the listing selects data files of a table."""
    names = [
        urls.name_below(file.url, root) for file in files if file_kinds.is_table_data(file.name)
    ]
    for folder, kind in tables.items():
        if any(name.startswith(folder) for name in names):
            _refuse_table(urls.join_url(root, folder.rstrip("/")), kind)
    for above in _list_above(root) if names else ():
        _refuse_table(above, "")


def _refuse_table(folder: str, kind: str) -> None:
    if kind := kind or _find_kind(folder):
        raise ConvertError(file_kinds.refuse_table(redact(folder), kind))


def _list_above(root: str) -> list[str]:
    """The root, and the nearest folders above it."""
    if urls.is_local(root):
        parents = list(urls.local_path(root).absolute().parents)[:_MOST_ABOVE]
        return [root, *map(urls.path_url, parents)]
    scheme, _, rest = root.partition("://")
    if scheme.lower() not in _TABLE_SCHEMES:
        return []
    parts = rest.split("/")
    ends = range(len(parts), 0, -1)[: 1 + _MOST_ABOVE]
    return [f"{scheme}://{'/'.join(parts[:end])}" for end in ends]


def _find_kind(folder: str) -> str:
    """The kind of the table in a folder, or "" if it is no table, or cannot be listed."""
    for log in _LOGS:
        with suppress(StoreError):
            for name in Location(urls.join_url(folder, log)).peek():
                if table := file_kinds.find_table(f"{log}/{name}"):
                    return table[1]
    return ""
