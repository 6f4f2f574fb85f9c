"""Compare locations by what they refer to, not by their text.

name_inside("link/a.jsonl", "data")     "a.jsonl" if link leads to data
name_inside("s3a://b/x/", "s3://b/x")   ""
name_inside("s3://b//x", "s3://b/x")    None, because they are two keys
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from cloudload.data.storage import urls


@dataclass(frozen=True)
class Location:
    """The location of a dataset, as its user wrote it.

    For example, `Location("s3://bucket/corpus", "train").url` is `"s3://bucket/corpus/train"`.
    """

    remote: str
    split: str | None = None

    @property
    def url(self) -> str:
        """The URL of the folder that contains `index.json`."""
        return urls.join_url(self.remote, self.split or "").rstrip("/")


def same_or_inside(inner: str, outer: str) -> bool:
    """Whether two locations are the same, or the first one is in the folder `outer`."""
    return name_inside(inner, outer) is not None


def name_inside(inner: str, outer: str) -> str | None:
    """The name of a location below the folder `outer`; "" if they are the same, None if it is not.

    Follows links. A file and a hard link to it are the same. Neither location needs to exist.
    """
    if urls.is_local(inner) != urls.is_local(outer):
        return None
    own, folder = canonical(inner), canonical(outer)
    if f"{own}/".startswith(f"{folder.rstrip('/')}/"):
        return own[len(folder.rstrip("/")) + 1 :]
    return _name_by_identity(own, folder) if urls.is_local(inner) else None


def canonical(url: str) -> str:
    """A location without links, aliases of schemes, and the queries of HTTP URLs.

    In a bucket, every character of a key counts. Elsewhere, several slashes are one.
    """
    if urls.is_local(url):
        return os.path.realpath(urls.local_path(url))
    scheme = urls.SCHEME_ALIASES.get(urls.scheme_of(url), urls.scheme_of(url))
    rest = url.partition("://")[2] or url.partition(":")[2]
    if scheme in ("http", "https"):
        host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
        rest = host.lower() + slash + unquote(path)
    if scheme not in urls.BUCKET_SCHEMES:
        rest = re.sub("/+", "/", rest)
    return f"{scheme}://{rest.rstrip('/')}"


def _name_by_identity(own: str, folder: str) -> str | None:
    """Compare files and folders by number, because a file may have several paths without a link."""
    with suppress(OSError):
        status = os.stat(folder)
        for path in (Path(own), *Path(own).parents):
            with suppress(OSError):
                if os.path.samestat(path.stat(), status):
                    name = os.path.relpath(own, path)
                    return "" if name == "." else name
    return None
