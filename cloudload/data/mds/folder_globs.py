"""The folders of datasets that a glob selects.

    s3://b/dolma3/*          law/  science/  partitions.json        law, science
    s3://b/*/v2              code/  web/                            code/v2, web/v2
    s3://b/raw/*.parquet     a glob of files, not of folders        none

Whether a folder has an index is not known until it is opened.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudload.data import file_kinds
from cloudload.data.mds.virtual_index import is_json_lines, is_parquet
from cloudload.data.storage import urls
from cloudload.data.storage.globs import Glob, find_glob
from cloudload.data.storage.locations import Location
from cloudload.data.storage.redaction import redact
from cloudload.errors import DatasetError
from cloudload.system import map_in_order

_SIGNS = re.compile(r"[*?\[]")
_NUM_THREADS = 16


class FoundFolder(NamedTuple):
    """A folder that a glob selects."""

    url: str
    name: str
    """The parts of its path that wildcards matched, joined by slashes."""


def find_folders(location: Location) -> list[FoundFolder]:
    """Find the folders that a location selects, by URL. None if it is not a glob of folders.

    A glob with `**`, and one on a web server, selects only files. Hidden folders are left out,
    unless the glob names them. Raises `DatasetError` if the glob also selects Parquet files,
    because it is not clear what to read, and `StoreError` if a folder cannot be listed.
    """
    url = urls.plain_location(location.url)
    is_of_files = "**" in url or is_parquet(url) or is_json_lines(url)
    if is_of_files or not _SIGNS.search(url) or urls.scheme_of(url) in ("http", "https"):
        return []
    if (glob := find_glob(location)) is None:
        return []
    found, files = [FoundFolder(glob.folder, "")], list[str]()
    for part in glob.pattern.split("/"):
        found, files = _enter(location, found, part)
    if found and (parquet := [file for file in files if is_parquet(file)]):
        raise DatasetError(
            f"{location} selects {len(found):,} folders, such as {redact(found[0].url)}, and "
            f"Parquet files, such as {redact(parquet[0])}. Use a glob that selects only one of "
            "them, or pass each in its own stream"
        )
    return sorted(found)


def _enter(
    location: Location, folders: list[FoundFolder], part: str
) -> tuple[list[FoundFolder], list[str]]:
    """Return the folders in `folders` that match a part of a pattern, and the files that do."""
    if not _SIGNS.search(part):
        return [FoundFolder(urls.join_url(url, part), name) for url, name in folders], []
    glob = Glob("", part)
    listed = map_in_order(
        lambda each: location.at(each.url).list_folder(), folders, _NUM_THREADS, "cloudload-list"
    )
    found, files = list[FoundFolder](), list[str]()
    for (url, name), entries in zip(folders, listed, strict=True):
        for entry in entries:
            own = entry.rstrip("/")
            is_hidden = bool(file_kinds.hidden_part(own)) and not glob.names_parts_with(own[0])
            if is_hidden or not glob.matches(own):
                continue
            if entry.endswith("/"):
                full = f"{name}/{own}" if name else own
                found.append(FoundFolder(urls.join_url(url, own), full))
            else:
                files.append(urls.join_url(url, own))
    return found, files
