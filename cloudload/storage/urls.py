"""Locations of data: URLs (`s3://bucket/key`, `gs://bucket/key`, `file:///x`, …) or plain paths."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from cloudload.storage.redaction import redact

BUCKET_SCHEMES = ("s3", "gs")
"""The schemes whose URLs begin with the name of a bucket."""

_URL_WITHOUT_SLASHES = re.compile(rf"({'|'.join(BUCKET_SCHEMES)}|az|abfs|https?|hf):")


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case: `s3`, `gs`, …, or `file` for a path."""
    if url.startswith("dbfs:/"):
        return "dbfs"
    head, separator, _ = url.partition("://")
    return head.lower() if separator else "file"


def is_local(url: str) -> bool:
    """Whether a URL is a path or a `file://` URL."""
    return scheme_of(url) == "file"


def local_path(url: str) -> Path:
    """The path of a local URL, with `~` expanded."""
    head, separator, rest = url.partition("://")
    is_url = separator and head.lower() == "file"
    return Path(rest if is_url else url).expanduser()


def check_location(url: str) -> None:
    """Raise `ValueError` unless `url` is a path or a complete URL.

    For example, it rejects an empty location, `s3:///folder` and `s3:bucket`.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not url.strip():
        raise ValueError("the location is empty. Use a folder or a URL such as s3://bucket/folder")
    if separator and (not rest.strip("/") or (scheme in BUCKET_SCHEMES and rest.startswith("/"))):
        raise ValueError(f"{redact(url)!r} has no bucket name. Use {scheme}://bucket/folder")
    if not separator and _URL_WITHOUT_SLASHES.match(url):
        meant = redact(re.sub(":/*", "://", url, count=1))
        raise ValueError(
            f"{meant.replace('://', ':', 1)!r} is neither a path nor a URL. Did you mean {meant}?"
        )


def join_url(base: str, name: str) -> str:
    """The URL of `name` below `base`; `base` itself if `name` is empty."""
    return f"{base.rstrip('/')}/{name}" if name else base


def split_url(url: str) -> tuple[str, str]:
    """The bucket and the key of a URL. A `?` and the text after it are part of the key."""
    parts = urlsplit(url, allow_fragments=False)
    return parts.netloc, (parts.path + (f"?{parts.query}" if parts.query else "")).lstrip("/")


def folder_prefix(key: str) -> str:
    """The prefix of the keys in the folder `key`; empty for a whole bucket."""
    return f"{key.rstrip('/')}/" if key else ""


def is_below(key: str, prefix: str) -> bool:
    """Whether the object `key` is `prefix` itself or in the folder `prefix`.

    `a/bc` is not below `a/b`. A key that ends in `/` is a folder marker and does not count.
    """
    return not key.endswith("/") and (
        not prefix or key == prefix or key.startswith(folder_prefix(prefix))
    )
