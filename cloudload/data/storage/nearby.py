"""Explain a location where nothing is stored, and suggest similar names.

data/corpus_mds    there is no folder data/corpus_mds. Did you mean data/corpus-mds?
/data/x/corpus     there is no folder /data/x/corpus. The nearest folder, /data, has a and b
empty              the folder empty is empty
s3://b/corpus      nothing is stored in s3://b/corpus. Did you mean s3://b/corpora?
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from cloudload.data.storage import urls
from cloudload.data.storage.locations import Location
from cloudload.data.storage.redaction import redact
from cloudload.errors import FailureKind, StoreError

DEADLINE_S = 10.0
"""The deadline, in seconds, of a request that only explains an error."""
_MOST_NAMED = 8


def raise_if_nothing(
    error: StoreError,
    location: Location,
    what: str,
    *,
    noun: str,
    advice: str = "Check the location",
) -> None:
    """Raise a clearer error than `error` if nothing is stored at `location`.

    `what` is the action that failed, as a verb phrase that follows "cannot". `noun` is the kind of
    object expected, such as `folder`. The message ends with `advice` if no similar name exists.
    Raises `StoreError` of the same kind as `error`.
    """
    if error.kind is not FailureKind.MISSING_OBJECT:
        return
    if reason := explain_nothing(location, noun):
        end = "" if reason.endswith("?") else f". {advice}"
        raise StoreError(f"cannot {what}: {reason}{end}", kind=error.kind) from error


def explain_nothing(location: Location, noun: str) -> str | None:
    """Explain why no objects were found at a location.

    Return None if the location has objects, or if its store cannot be listed.
    """
    location = location.within(DEADLINE_S)
    try:
        return _explain_path(location, noun) if location.is_local else _explain_url(location)
    except StoreError:
        return None


def _explain_path(location: Location, noun: str) -> str | None:
    path = urls.local_path(location.url).absolute()
    if path.is_dir():
        names = location.peek()
        if any(not name.startswith(".") for name in names):
            return None
        return f"the folder {location} {'has only hidden files' if names else 'is empty'}"
    if path.exists():
        return None
    nearest = next(parent for parent in path.parents if parent.exists())
    missing = f"there is no {noun} {location}"
    if not nearest.is_dir():
        return f"{missing}, because {nearest} is a file"
    first, *others = path.relative_to(nearest).parts
    names = location.at(str(nearest)).peek()
    for name in _find_close(first, names):
        if Path(nearest, name, *others).exists():
            meant = os.path.relpath(Path(nearest, name, *others))
            return f"{missing}. Did you mean {path_like(location.url, meant)}?"
    return f"{missing}. The nearest existing folder, {nearest}, {_describe_names(names)}"


def path_like(url: str, relative: str) -> str:
    """Return the path `relative`, but as an absolute path if the path `url` is absolute."""
    return relative if not urls.local_path(url).is_absolute() else os.path.abspath(relative)


def _explain_url(location: Location) -> str | None:
    url = location.url
    missing, (_, key) = f"nothing is stored in {location}", urls.split_url(url)
    if not key.strip("/"):
        return None if location.peek() else missing
    parent, _, name = url.rstrip("/").rpartition("/")
    names = location.at(f"{parent}/").peek()
    if f"{name}/" in names or name in names:
        return None
    if close := _find_close(name, names):
        return f"{missing}. Did you mean {redact(urls.join_url(parent, close[0]))}?"
    if (meant := re.sub("(?<!:)/+", "/", url)) != url:  # two slashes are another key than one
        return f"{missing}. Did you mean {redact(meant)}?"
    return f"{missing}. {redact(parent)} {_describe_names(names)}"


def _find_close(name: str, names: Sequence[str]) -> list[str]:
    """Up to three names similar to `name`, the most similar first, without trailing slashes."""
    known = {each.rstrip("/").lower(): each.rstrip("/") for each in names}
    return [known[each] for each in get_close_matches(name.lower(), known, n=3, cutoff=0.7)]


def _describe_names(names: Sequence[str]) -> str:
    shown = [name for name in names if not name.startswith(".")]
    if not shown:
        return "is empty"
    return f"has {'only ' if len(shown) == 1 else ''}{name_some(shown)}"


def name_some(names: Sequence[str]) -> str:
    """Name up to eight of some files or folders, without secrets, as in a sentence."""
    more = len(names) - _MOST_NAMED
    return join_words([*map(redact, names[:_MOST_NAMED]), *[f"{more:,} more"] * (more > 0)])


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`."""
    *head, last = words
    return f"{', '.join(head)} and {last}" if head else last
