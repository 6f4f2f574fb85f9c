"""Objects in S3, GCS, any fsspec file system, or a local folder, behind eight verbs.

    read_object  open_object  download_object  write_object  upload_file  delete_object  list_objects  object_exists

Passing troubles are retried with growing, jittered pauses until `Retry.deadline_s`; what will not pass (403, 404, a bad secret)
fails at once and says what it is.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from cloudload.backends import CHUNK_BYTES, Retry, StoredObject, backend_of
from cloudload.errors import StoreError
from cloudload.locations import hide_secrets

T = TypeVar("T")


def read_object(url: str, retry: Retry | None = None, most_bytes: int | None = None) -> bytes:
    """The whole object, or of one that is larger than `most_bytes` the first bytes, one more than that."""
    buffer = io.BytesIO()
    download_object(url, buffer, retry, most_bytes)
    return buffer.getvalue()


def download_object(url: str, target: BinaryIO, retry: Retry | None = None, most_bytes: int | None = None) -> int:
    """Write the object to the seekable `target` from its start; returns the bytes written. A retry starts over.

    Of an object that is larger than `most_bytes`, one byte more than that is written: enough to tell.
    """
    retry = retry or Retry()
    start = target.tell()
    deadline = time.monotonic() + retry.deadline_s

    def attempt() -> int:
        target.seek(start)
        left = sys.maxsize if most_bytes is None else most_bytes + 1
        with contextlib.closing(backend_of(url).open(url, retry)) as source:
            while chunk := source.read(min(left, CHUNK_BYTES)):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not finished after {retry.deadline_s:.0f} s")
                target.write(chunk)
                left -= len(chunk)
        # only now: until here the target keeps the bytes that it has reserved
        target.truncate()
        return target.tell() - start

    return _retrying("read", url, retry, attempt)


def open_object(url: str, retry: Retry | None = None) -> BinaryIO:
    """A stream over the object; only opening it is retried."""
    retry = retry or Retry()
    return _retrying("open", url, retry, lambda: backend_of(url).open(url, retry))


def upload_file(path: Path, url: str, retry: Retry | None = None) -> None:
    """Store the file's bytes as an object; a reader sees all of it or nothing."""
    retry = retry or Retry()
    _retrying("write", url, retry, lambda: backend_of(url).upload(path, url, retry))


def write_object(url: str, data: bytes, retry: Retry | None = None) -> None:
    """Store `data` as an object; a reader sees all of it or nothing."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        upload_file(Path(file.name), url, retry)


def delete_object(url: str, retry: Retry | None = None) -> None:
    """Remove the object; one that is not there is removed already."""
    retry = retry or Retry()

    def attempt() -> None:
        try:
            backend_of(url).delete(url, retry)
        except Exception as error:
            if not backend_of(url).is_missing(error):
                raise

    _retrying("delete", url, retry, attempt)


def list_objects(url: str, retry: Retry | None = None) -> list[StoredObject]:
    """Every object below a folder or prefix (or the one object that it names), sorted by location."""
    retry = retry or Retry()
    found = _retrying("list", url, retry, lambda: list(backend_of(url).list(url, retry)))
    return sorted(found, key=lambda item: item.url)


def object_exists(url: str, retry: Retry | None = None) -> bool:
    """Whether the object can be opened; an error other than its absence is raised."""
    try:
        open_object(url, retry).close()
    except StoreError as error:
        if error.__cause__ is not None and backend_of(url).is_missing(error.__cause__):
            return False
        raise
    return True


def _retrying(verb: str, url: str, retry: Retry, attempt: Callable[[], T]) -> T:
    start, attempts, pause_s = time.monotonic(), 0, retry.pause_s
    while True:
        attempts += 1
        try:
            return attempt()
        except StoreError:
            raise
        except Exception as error:
            elapsed_s = time.monotonic() - start
            passing = backend_of(url).is_passing(error)
            pause_s = min(pause_s * 2, 10.0) * random.uniform(0.5, 1.0)
            if not passing or elapsed_s + pause_s > retry.deadline_s:
                times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                what = f"cannot {verb} {hide_secrets(url)} ({times}, {elapsed_s:.1f} s)"
                raise StoreError(f"{what}: {_explain(error)}{_advice(url, error, passing)}") from error
        time.sleep(pause_s)


def _explain(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _advice(url: str, error: BaseException, passing: bool) -> str:
    if backend_of(url).is_missing(error):
        return ". Check the location: there is no such object or bucket"
    if passing:
        return ". The store did not answer in time; check that it can be reached, and run again"
    if _is_denied(error):
        return ". Check the credentials (without any, requests are anonymous), the region, and the permissions of this account"
    return ". Check the location" if not isinstance(error, OSError) else ""


def _is_denied(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    # an expired token or a wrong region is a 400
    if (status or getattr(error, "code", None)) in (400, 401, 403) or isinstance(error, PermissionError):
        return True
    # of botocore and google.auth, which are not imported for this
    return bool(re.search(r"Credential|Auth|Profile|Refresh|Token", type(error).__name__))
