"""Objects in S3, GCS, any fsspec file system, or a local folder, behind eight verbs.

    read_object  open_object  download_object  write_object  upload_file  delete_object  list_objects  object_exists

Passing troubles are retried with growing, jittered pauses until `Retry.deadline_s`; what will not
pass (403, 404, a bad secret) fails at once and says what it is. The deadline holds for looking up a
name and for connecting, too. Only uploads, and streams once they are open, may take longer: each of
their requests has `Retry.timeout_s`.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from cloudload.errors import StoreError
from cloudload.storage.base import CHUNK_BYTES, Retry, StoredObject, Trouble
from cloudload.storage.clients import in_time
from cloudload.storage.redaction import hide_secrets, holds_secrets
from cloudload.storage.registry import backend_of
from cloudload.storage.urls import is_local

T = TypeVar("T")

_ADVICE = {
    Trouble.MISSING_OBJECT: "Check the location: there is no such object",
    Trouble.MISSING_BUCKET: "Check the location: there is no such bucket",
    Trouble.DENIED: "Check the permissions that go with the credentials: the store does not let "
    "them do this",
    Trouble.NO_CREDENTIALS: "Check the credentials: none were found, so that "
    "the request was anonymous",
    Trouble.BAD_CREDENTIALS: "Check the credentials: they are not accepted",
    Trouble.EXPIRED_CREDENTIALS: "Check the credentials: they have expired. Get "
    "new ones, and run again",
    Trouble.WRONG_CLOCK: "Check the clock of this machine: it differs too much from the store's",
    Trouble.WRONG_REGION: "Check the region: the bucket is in another one. Set "
    "AWS_REGION to the bucket's",
    Trouble.UNTRUSTED: "Check the certificate: this machine does not trust the store's. Set "
    "AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE",
    Trouble.BUSY: "The store failed or was busy all the time; run again, with fewer requests at a "
    "time if it goes on",
    Trouble.UNREACHABLE: "The store did not answer in time; check that it can "
    "be reached, and run again",
    Trouble.OTHER: "Check the location",
}


def read_object(url: str, retry: Retry | None = None, most_bytes: int | None = None) -> bytes:
    """The whole object, or of one that is larger than `most_bytes` the first bytes, one more than
    that."""
    buffer = io.BytesIO()
    download_object(url, buffer, retry, most_bytes)
    return buffer.getvalue()


def download_object(
    url: str, target: BinaryIO, retry: Retry | None = None, most_bytes: int | None = None
) -> int:
    """Write the object to the seekable `target` from its start; returns the bytes written. A retry
    starts over.

    Of an object that is larger than `most_bytes`, one byte more than that is written: enough to
    tell.
    """
    retry = retry or Retry()
    start = target.tell()
    # an attempt that is given up goes on in its thread, and must not write to what may be another's
    # by then
    writing, is_over = threading.Lock(), False

    def attempt() -> int:
        target.seek(start)
        left = sys.maxsize if most_bytes is None else most_bytes + 1
        with contextlib.closing(backend_of(url).open(url, retry)) as source:
            while chunk := source.read(min(left, CHUNK_BYTES)):
                with writing:
                    if is_over:
                        return 0
                    target.write(chunk)
                left -= len(chunk)
        with writing:
            if is_over:
                return 0
            # only now: until here the target keeps the bytes that it has reserved
            target.truncate()
            return target.tell() - start

    try:
        return _retrying("read", url, retry, attempt)
    finally:
        with writing:
            is_over = True


def open_object(url: str, retry: Retry | None = None) -> BinaryIO:
    """A stream over the object; only opening it is retried, and only that ends at the deadline."""
    retry = retry or Retry()
    return _retrying("open", url, retry, lambda: backend_of(url).open(url, retry))


def upload_file(path: Path, url: str, retry: Retry | None = None) -> None:
    """Store the file's bytes as an object; a reader sees all of it or nothing."""
    retry = retry or Retry()
    _retrying(
        "write", url, retry, lambda: backend_of(url).upload(path, url, retry), may_be_long=True
    )


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
            if not backend_of(url).trouble(error).is_missing:
                raise

    _retrying("delete", url, retry, attempt)


def list_objects(url: str, retry: Retry | None = None) -> list[StoredObject]:
    """Every object below a folder or prefix (or the one object that it names), sorted by
    location."""
    retry = retry or Retry()
    found = _retrying("list", url, retry, lambda: list(backend_of(url).list(url, retry)))
    return sorted(found, key=lambda item: item.url)


def object_exists(url: str, retry: Retry | None = None) -> bool:
    """Whether the object can be opened; an error other than its absence is raised."""
    try:
        open_object(url, retry).close()
    except StoreError as error:
        if error.is_missing:
            return False
        raise
    return True


def _retrying(
    verb: str, url: str, retry: Retry, attempt: Callable[[], T], *, may_be_long: bool = False
) -> T:
    start, attempts, pause_s = time.monotonic(), 0, retry.pause_s
    while True:
        attempts += 1
        left_s = start + retry.deadline_s - time.monotonic()
        try:
            return attempt() if may_be_long or is_local(url) else in_time(left_s, attempt)
        except StoreError:
            raise
        except Exception as error:
            elapsed_s = time.monotonic() - start
            trouble = backend_of(url).trouble(error)
            pause_s = min(pause_s * 2, 10.0) * random.uniform(0.5, 1.0)
            if not trouble.is_passing or elapsed_s + pause_s > retry.deadline_s:
                times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                what = f"cannot {verb} {hide_secrets(url)} ({times}, {elapsed_s:.1f} s)"
                failure = StoreError(
                    f"{what}: {_explain(error)}{_advise(trouble, error)}",
                    is_missing=trouble.is_missing,
                )
                raise failure from (None if holds_secrets(error) else error)
        time.sleep(pause_s)


def _explain(error: BaseException) -> str:
    text = hide_secrets(" ".join(str(error).split()))[:500].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _advise(trouble: Trouble, error: BaseException) -> str:
    # what the system says of its own files says enough
    is_plain = trouble is Trouble.OTHER and isinstance(error, OSError)
    return "" if is_plain else f". {_ADVICE[trouble]}"
