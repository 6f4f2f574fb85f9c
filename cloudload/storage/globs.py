"""Globs that select files, such as `corpus/**/*.jsonl.gz` or `s3://bucket/*/2024-?.parquet`."""

from __future__ import annotations

import re

from cloudload.storage.urls import is_local, local_path


def is_glob(location: str) -> bool:
    """Whether a path or URL has a wildcard and is not an existing local file or folder."""
    has_wildcard = any(sign in location for sign in "*?[")
    return has_wildcard and not (is_local(location) and local_path(location).exists())


def folder_before_wildcard(location: str) -> str:
    """The folder before a glob's first wildcard, such as `corpus` in `corpus/*/a.jsonl`."""
    head = re.split(r"[*?\[]", location, maxsplit=1)[0]
    return head.rpartition("/")[0] or ("/" if head.startswith("/") else ".")


def glob_pattern(location: str) -> re.Pattern[str]:
    """Compile a glob to a pattern for `fullmatch`.

    `*` stays within a folder. `**` crosses folders.
    """
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", location)
    translated = [signs.get(part) or _translate_literal(part) for part in parts]
    # in a listing of the current folder, names may begin with ./
    return re.compile(r"(?:\./)?" + "".join(translated))


def _translate_literal(part: str) -> str:
    is_set = len(part) > 2 and part[0] == "[" and part[-1] == "]"
    return part.replace("[!", "[^") if is_set else re.escape(part)
