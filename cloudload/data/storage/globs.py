"""Globs that select files, such as `corpus/**/*.jsonl.gz` or `s3://bucket/*/2024-?.parquet`.

    glob = find_glob(Location("s3://bucket/raw/*/a.jsonl"))
    glob.folder                       "s3://bucket/raw"
    glob.matches("x/a.jsonl")         True
    glob.may_match_below("x/y")       False

A file or folder that exists under exactly this name is not a glob.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property

from cloudload.data.storage import urls
from cloudload.data.storage.locations import Location
from cloudload.data.storage.redaction import redact
from cloudload.errors import StoreError

_SIGNS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class Glob:
    """A folder, and a pattern of the names of files below it.

    `*` stays within a folder. `**` crosses folders.
    """

    folder: str
    pattern: str

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return _compile(self.pattern)

    @cached_property
    def _parts(self) -> list[str]:
        return self.pattern.split("/")

    def matches(self, name: str) -> bool:
        """Whether the glob selects the file with this name below its folder."""
        return self._compiled.fullmatch(name) is not None

    def may_match_below(self, name: str) -> bool:
        """Whether the glob may select a file in the folder with this name below its folder."""
        names = name.split("/")
        for part, own in zip(self._parts, names, strict=False):
            if "**" in part or "[" in part:  # a set may contain a slash
                return True
            if not _compile(part).fullmatch(own):
                return False
        return len(names) < len(self._parts)

    def names_parts_with(self, sign: str) -> bool:
        """Whether the glob itself names a file or folder that begins with `sign`."""
        return any(part.startswith(sign) for part in self._parts)


def find_glob(location: Location) -> Glob | None:
    """The glob that a location means; None if it has no wildcard, or exists as it is.

    The query of an HTTP URL is not a part of a glob. If the location has a wildcard, this sends a
    request to its store. Raises `ValueError` for a set of characters that is not valid.
    """
    location = location.at(url := urls.plain_location(location.url))
    is_web = urls.scheme_of(url) in ("http", "https")
    path, signs = (url.partition("?")[0], "*[") if is_web else (url, "*?[")
    first = next((index for index, sign in enumerate(path) if sign in signs), None)
    if first is None or _does_exist(location):
        return None
    start = path.rfind("/", 0, first) + 1
    folder = path[:start].rstrip("/") or ("/" if start else ".")
    try:
        _compile(path[start:])
    except re.error as error:
        raise ValueError(
            f"{redact(url)} is not a valid glob ({error}). Correct the characters in brackets"
        ) from error
    return Glob(folder, path[start:])


def _does_exist(location: Location) -> bool:
    if location.is_local:
        return os.path.exists(urls.local_path(location.url))  # false for a name that is too long
    try:
        return location.collect(lambda found: any(True for _ in found))
    except StoreError:
        return False  # a later request explains what is wrong


def _compile(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    translated = [_SIGNS.get(part) or _translate(part) for part in parts]
    return re.compile("".join(translated), re.DOTALL)


def _translate(part: str) -> str:
    if not (len(part) > 2 and part[0] == "[" and part[-1] == "]"):
        return re.escape(part)
    is_negated = part[1] == "!" and len(part) > 3
    characters = re.sub(r"([\\\[&~|^])", r"\\\1", part[1 + is_negated : -1])
    return f"[{'^' * is_negated}{characters}]"
