"""The version of an object, which a store reports with each read, without an extra request.

    S3, GCS, HTTP    ETag, generation, Last-Modified, Date       from the headers of the response
    local files      modification time                           from the open file
    fsspec           etag, generation, last_modified, …          from fsspec's details of the file

A store may report nothing. Then the version is `UNKNOWN`.

Only the response to a read identifies the content that was read. fsspec may return details from an
earlier listing, and a web server may derive an ETag from only the size and a time that a copy
preserves. So neither is ever `exact`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

_TAGS = ("x-amz-version-id", "x-goog-generation", "etag")
_IDS = ("x-amz-version-id", "x-goog-generation")
_DETAILED_TAGS = ("VersionId", "generation", "ETag", "etag", "md5", "content_md5", "blob_id")
_DETAILED_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")

# an object must be this old when it is read, because servers and file systems may round times down
# to even seconds, and servers may derive ETags from the rounded times
SETTLED_S = 2.0


@dataclass(frozen=True)
class Version:
    """A version of an object, as the store reports it. Times are in seconds since 1970."""

    tag: str = ""
    """An ID that differs between contents, such as an ETag; "" if the store reports none."""
    written_s: float | None = None
    """When the object was written, by the store's clock; None if unknown. S3 and GCS round it down
    to a second."""
    read_s: float | None = None
    """When the store answered the read, by the same clock; None if unknown."""
    exact: str = ""
    """An ID that no other content of the object has had or can get. "" if there is no such ID, for
    instance because the ETag is weak, or the object was written less than two seconds ago."""
    size: int | None = None
    """The number of stored bytes; None if unknown."""

    @property
    def is_known(self) -> bool:
        """Whether writing the object again changes `tag` or `written_s`."""
        return bool(self.tag) or self.written_s is not None

    @property
    def key(self) -> str:
        """Text that is equal for all reads of the same version."""
        return f"{self.tag} {self.written_s}"


UNKNOWN = Version()


def version_of_headers(headers: Mapping[str, str]) -> Version:
    """The version of an object from the headers of an HTTP response."""
    lower = {name.lower(): value for name, value in headers.items()}
    tag = " ".join(lower[name] for name in _TAGS if name in lower)
    written_s, read_s = _parse_date(lower.get("last-modified")), _parse_date(lower.get("date"))
    has_id = any(lower.get(name, "null") != "null" for name in _IDS)
    has_etag = '"' in lower.get("etag", "") and not lower["etag"].startswith("W/")
    is_exact = has_id or (has_etag and _is_settled(written_s, read_s))
    size = lower.get("content-length", "")
    return Version(
        tag, written_s, read_s, tag if is_exact else "", int(size) if size.isdecimal() else None
    )


def version_of_file(descriptor: int) -> Version:
    """The version of an open local file."""
    found, now_s = os.fstat(descriptor), time.time()
    values = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    is_exact = _is_settled(max(found.st_mtime, found.st_ctime), now_s)
    exact = " ".join(map(str, values)) if is_exact else ""
    return Version(str(found.st_mtime_ns), found.st_mtime, now_s, exact, found.st_size)


def version_of_details(details: Mapping[str, Any]) -> Version:
    """The version in the details that fsspec reports of a file. Their names differ by store."""
    tags = [str(details[name]) for name in _DETAILED_TAGS if details.get(name)]
    times = [_read_time(details[name]) for name in _DETAILED_TIMES if details.get(name)]
    return Version(" ".join(tags), next((each for each in times if each is not None), None))


def _is_settled(written_s: float | None, read_s: float | None) -> bool:
    """Whether any later write would certainly change the object's modification time."""
    return written_s is not None and read_s is not None and read_s - written_s >= SETTLED_S


def _parse_date(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_time(value: Any) -> float | None:
    """Convert a `datetime`, seconds since 1970, or ISO text from fsspec to seconds since 1970."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
