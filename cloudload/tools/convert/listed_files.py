"""Read a list of input files: one URL or path a line, as Common Crawl and others publish them.

    base     https://data.commoncrawl.org
    list     # Nemotron-CC                              a comment
             contrib/Nemotron/a.jsonl.zstd              below the base
             https://host/b.jsonl.gz                    complete

The order of the list is that of the documents. Consecutive files of one host or bucket are one
input, whose root is the base, or else the folder that contains them all.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cloudload.data import Location, StoredObject, nearby, redact, urls
from cloudload.errors import ConvertError, StoreError
from cloudload.system import map_in_order

_GZIP = b"\x1f\x8b"
_REQUESTS = 32
"""The number of files whose sizes are requested at a time."""
_WEB = ("http", "https")


@dataclass(frozen=True)
class FileList:
    """Consecutive files of a list, below one root. It is an input, like a folder."""

    root: str
    urls: tuple[str, ...]

    def find(self) -> list[StoredObject]:
        """Request the size and tag of each file. Raises `StoreError` if one is not a file."""
        return list(map_in_order(_find_file, self.urls, _REQUESTS, "cloudload-list"))


def read_list(inputs: Any, inputs_from: str | os.PathLike[str]) -> list[FileList]:
    """Read the list at a path or URL. `inputs` is the base of its relative lines, or is empty.

    Raises `ValueError` if `inputs` is not a location, and `ConvertError` for a list without files,
    a relative line without a base, and a line with the query of an HTTP URL, because it may be a
    signature, which a plan must not store.
    """
    shown, base = redact(os.fspath(inputs_from)), _base_of(inputs)
    files = [
        _resolve(line, base, f"line {number} of {shown}")
        for number, line in enumerate(_read_lines(os.fspath(inputs_from)), 1)
        if line and not line.startswith("#")
    ]
    if not files:
        raise ConvertError(f"the list {shown} names no files. Write one URL or path a line")
    if len(set(files)) < len(files):
        twice = next(url for url, count in Counter(files).items() if count > 1)
        raise ConvertError(f"the list {shown} has {redact(twice)} twice. List each file once")
    groups = [
        tuple(group) for _, group in itertools.groupby(files, lambda url: _place_of(url, base))
    ]
    return [FileList(_root_of(group, base), group) for group in groups]


def digest_lists(inputs: Any) -> str | None:
    """Return a digest of the names that lists have below their roots; None for other inputs."""
    if not isinstance(inputs, list) or not isinstance(inputs[0], FileList):
        return None
    names = [urls.name_below(url, item.root) for item in inputs for url in item.urls]
    return hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()[:32]


def _base_of(inputs: Any) -> str:
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    several = [] if inputs is None else several
    if len(several) > 1 or not all(isinstance(each, str | os.PathLike) for each in several):
        raise ValueError(
            "inputs_from (--inputs-from) can be combined with only one input: the folder or URL "
            "below which the lines of the list are. Convert other inputs with --append"
        )
    return urls.plain_location(os.fspath(several[0])) if several else ""


def _read_lines(location: str) -> Iterator[str]:
    data = Location(location).read()
    try:
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConvertError(
            f"the list {redact(location)} is not text ({error}). Pass a text file, gzipped or not, "
            "with one URL or path a line"
        ) from error
    yield from map(str.strip, text.splitlines())


def _resolve(line: str, base: str, place: str) -> str:
    """Return the location that a line means. `place` names the line in errors."""
    is_complete = not urls.is_local(line) or line.startswith(("/", "~", "file://"))
    if not is_complete and not base:
        raise ConvertError(
            f"{place} is {line!r}, which is relative. Also pass the folder or URL below which the "
            "files are as the input, such as https://data.commoncrawl.org"
        )
    found = urls.plain_location(line) if is_complete else urls.join_url(base, line)
    if urls.scheme_of(found) in _WEB and urlsplit(found).query:
        raise ConvertError(
            f"{place} has a query, {redact(found)}?…, which may be a signature, and the plan of a "
            "conversion stores the list. Pass signed URLs as inputs instead"
        )
    return found


def _place_of(url: str, base: str) -> str:
    """What the files of one input have in common: a base, or else a host or a bucket."""
    if base and url.startswith(f"{base}/"):
        return base
    return "" if urls.is_local(url) else "/".join(url.split("/", 3)[:3])


def _root_of(files: tuple[str, ...], base: str) -> str:
    if base and files[0].startswith(f"{base}/"):
        return base
    levels = zip(*(url.split("/")[:-1] for url in files), strict=False)
    same = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
    return "/".join(names[0] for names in same) or "/"


def _find_file(url: str) -> StoredObject:
    location = Location(url)
    try:
        found = location.list_objects()
    except StoreError as error:
        nearby.raise_if_nothing(error, location, f"read the listed file {location}", noun="file")
        raise
    if [item.url for item in found] != [url]:
        what = "is a folder" if found else "does not exist"
        raise ConvertError(f"the listed file {location} {what}. List only files")
    return found[0]
