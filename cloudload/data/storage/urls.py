"""Locations of data: URLs (`s3://bucket/key`, `gs://bucket/key`, `file:///x`, …) or plain paths.

Two locations are compared by what they refer to, not by their text.

name_inside("link/a.jsonl", "data")     "a.jsonl" if link leads to data
name_inside("s3a://b/x/", "s3://b/x")   ""
name_inside("s3://b//x", "s3://b/x")    None, because they are two keys
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from cloudload.data.storage.redaction import redact

BUCKET_SCHEMES = ("s3", "gs")
"""The schemes whose URLs begin with the name of a bucket."""
SYNTHETIC = "synthetic"
"""The scheme of datasets that nobody stores; see `cloudload.data.mds.synthetic`."""
SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Maps other programs' names of schemes to ours."""

_URL_WITHOUT_SLASHES = re.compile(rf"({'|'.join(BUCKET_SCHEMES)}|az|abfs|https?|hf):")


_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case: `s3`, `gs`, …, or `file` for a path."""
    if url.startswith("dbfs:/"):
        return "dbfs"
    if url.startswith(f"{SYNTHETIC}:"):
        return SYNTHETIC
    head, separator, _ = url.partition("://")
    return head.lower() if separator else "file"


def is_local(url: str) -> bool:
    """Whether a URL is a path or a `file://` URL."""
    return scheme_of(url) == "file"


def local_path(url: str) -> Path:
    """The path of a local URL, with `~` expanded."""
    head, separator, rest = url.partition("://")
    is_url = separator and head.lower() == "file"
    # `./~` is the folder `~`, not the home, so expand before `Path` removes the `./`
    return Path(os.path.expanduser(rest if is_url else url))


def path_url(path: Path) -> str:
    """The location of a path, for which `local_path` returns the same path.

    It begins with `./` if the path alone would mean something else, as `~` and `dbfs:/a` do.
    """
    text = str(path)
    return text if is_local(text) and not text.startswith("~") else f"./{text}"


def plain_location(url: str) -> str:
    """A location as listings spell it: a path without `~` and `file://`, or a URL.

    It does not end in a slash, unless it is the path `/`.
    """
    return path_url(local_path(url)) if is_local(url) else url.rstrip("/")


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path with `~` expanded. Raises `ValueError` if the user's home folder is not known."""
    expanded = os.path.expanduser(path)
    if expanded == "~" or expanded.startswith("~/"):
        raise ValueError(
            f"{os.fspath(path)} cannot be found, because this user has no home folder. Set HOME, "
            "or use a path without ~"
        )
    return Path(expanded)


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


def name_below(url: str, folder: str) -> str:
    """The name of a listed object below the folder that was listed; "" for the folder itself.

    `folder` is a `plain_location`. `join_url` of both is the object's URL. In a bucket, a name may
    begin with a slash, because `s3://b/a//c` and `s3://b/a/c` are two objects.
    """
    if url == folder:
        return ""
    name = url.removeprefix("" if folder == "." else f"{folder.rstrip('/')}/")
    return name.removeprefix("./") if is_local(url) else name


def utf8_name(name: str) -> str:
    """A name in which the bytes that are not UTF-8 are escaped, such as `caf%E9.jsonl`."""
    # a path has each such byte as a surrogate from U+DC80 to U+DCFF
    return _NOT_UTF8.sub(lambda match: f"%{ord(match[0]) - 0xDC00:02X}", name)


def split_url(url: str) -> tuple[str, str]:
    """The bucket and the key of a URL. The key has every character after the bucket's slash."""
    rest = url.partition("://")[2] or url.partition(":")[2]
    bucket, _, key = rest.partition("/")
    return bucket, key


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


def same_or_inside(inner: str, outer: str) -> bool:
    """Whether two locations are the same, or the first one is in the folder `outer`."""
    return name_inside(inner, outer) is not None


def name_inside(inner: str, outer: str) -> str | None:
    """The name of a location below the folder `outer`; "" if they are the same, None if it is not.

    Follows links. A file and a hard link to it are the same. Neither location needs to exist.
    """
    if is_local(inner) != is_local(outer):
        return None
    own, folder = canonical(inner), canonical(outer)
    if f"{own}/".startswith(f"{folder.rstrip('/')}/"):
        return own[len(folder.rstrip("/")) + 1 :]
    return _name_by_identity(own, folder) if is_local(inner) else None


def canonical(url: str) -> str:
    """A location without links, aliases of schemes, and the queries of HTTP URLs.

    In a bucket, every character of a key counts. Elsewhere, several slashes are one.
    """
    if is_local(url):
        return os.path.realpath(local_path(url))
    scheme = SCHEME_ALIASES.get(scheme_of(url), scheme_of(url))
    rest = url.partition("://")[2] or url.partition(":")[2]
    if scheme in ("http", "https"):
        host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
        rest = host.lower() + slash + unquote(path)
    if scheme not in BUCKET_SCHEMES:
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
