"""The version of an object, which a store reports with each read, without an extra request.

    S3, GCS, HTTP    ETag, generation, Last-Modified, Date       from the headers of the response
    local files      modification time                           from the open file
    fsspec           etag, generation, last_modified, …          from fsspec's details of the file

A store may report nothing. Then the version is `UNKNOWN`.
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
_DETAILED_TAGS = ("VersionId", "generation", "ETag", "etag", "md5", "content_md5", "blob_id")
_DETAILED_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


@dataclass(frozen=True)
class Version:
    """A version of an object, as the store reports it. Times are in seconds since 1970."""

    tag: str = ""
    """An ID that differs between contents, such as an ETag; "" if the store reports none."""
    written_s: float | None = None
    """When the object was written, by the store's clock; None if unknown. S3 and GCS round it down
    to a second."""
    read_s: float | None = None
    """When the store answered, by the same clock; None if unknown."""

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
    """The version in the headers of an HTTP response."""
    lower = {name.lower(): value for name, value in headers.items()}
    tag = " ".join(lower[name] for name in _TAGS if name in lower)
    return Version(tag, _parse_date(lower.get("last-modified")), _parse_date(lower.get("date")))


def version_of_file(descriptor: int) -> Version:
    """The version of an open local file."""
    found = os.fstat(descriptor)
    return Version(str(found.st_mtime_ns), found.st_mtime, time.time())


def version_of_details(details: Mapping[str, Any]) -> Version:
    """The version in fsspec's details of a file. Their names differ by store."""
    tags = [str(details[name]) for name in _DETAILED_TAGS if details.get(name)]
    times = [_read_time(details[name]) for name in _DETAILED_TIMES if details.get(name)]
    return Version(" ".join(tags), next((each for each in times if each is not None), None))


def _parse_date(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_time(value: Any) -> float | None:
    """A time that fsspec gives as a `datetime`, as seconds since 1970, or as ISO text."""
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
