"""Eight functions that read, write, list, and delete objects.

    read_object  open_object  download_object        list_objects
    write_object  create_object  upload_file  delete_object

Transient errors are retried with exponential backoff and jitter until `Retry.deadline_s`. Permanent
errors, such as a 404 or a wrong secret, are raised immediately. The deadline includes DNS and
connecting. It does not interrupt access to local files, or limit an upload that has begun, except
as the socket timeout of google-cloud-storage. Reads from an open stream have no deadline. Each
that uses the network is limited to `Retry.timeout_s`.

If a request fails, every function raises `StoreError`, whose `kind` is a `FailureKind`. Reads from
an open stream raise the client's errors instead.
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

from cloudload.errors import FailureKind, StoreError
from cloudload.storage.base import CHUNK_BYTES, Backend, Retry, StoredObject
from cloudload.storage.clients import call_with_timeout
from cloudload.storage.local import LocalStore
from cloudload.storage.redaction import contains_secrets, redact
from cloudload.storage.registry import backend_of
from cloudload.system.temp_files import scratch_file

T = TypeVar("T")

_LONGEST_PAUSE_S = 10.0

_ADVICE = {
    FailureKind.MISSING_OBJECT: "There is no such object. Check the location",
    FailureKind.MISSING_BUCKET: "There is no such bucket. Check the location",
    FailureKind.DENIED: "The store or a proxy denied access. Check the credentials and their "
    "permissions, and your proxy's login if you use one",
    FailureKind.NO_CREDENTIALS: "No credentials were found, and the store refused an anonymous "
    "request. Configure credentials",
    FailureKind.BAD_CREDENTIALS: "The credentials were rejected or could not be loaded. Check the "
    "credentials",
    FailureKind.EXPIRED_CREDENTIALS: "The credentials have expired. Get new ones and run again",
    FailureKind.WRONG_CLOCK: "This machine's clock differs too much from the store's. Correct "
    "the clock",
    FailureKind.WRONG_REGION: "The bucket is in a different region. Set AWS_DEFAULT_REGION to the "
    "bucket's region",
    FailureKind.UNTRUSTED: "This machine does not trust the store's certificate. If its CA is "
    "private, set AWS_CA_BUNDLE (s3://), REQUESTS_CA_BUNDLE (gs://) or SSL_CERT_FILE (https://) to "
    "a file that contains the CA's certificate",
    FailureKind.BUSY: "The store failed or was busy. Run again. If it keeps failing, send fewer "
    "requests at a time, for example with fewer workers",
    FailureKind.UNREACHABLE: "The store could not be reached, did not answer in time, or broke the "
    "connection. Check the network and the location, and run again. If a loader's connection is "
    "slow, raise its Retry.deadline_s",
    FailureKind.OTHER: "Check the location and the store's message",
}


def read_object(url: str, retry: Retry | None = None, most_bytes: int | None = None) -> bytes:
    """Read an object and return its bytes; with `most_bytes`, only the first `most_bytes` + 1."""
    buffer = io.BytesIO()
    download_object(url, buffer, retry, most_bytes)
    return buffer.getvalue()


def download_object(
    url: str,
    target: BinaryIO,
    retry: Retry | None = None,
    most_bytes: int | None = None,
    *,
    start: int = 0,
    tag: str = "",
) -> int:
    """Write an object to the seekable `target` from its current position. Return the byte count.

    `target` is truncated after the object. A retry starts over. With `most_bytes`, only the
    first `most_bytes` + 1 bytes are written, so that the caller can detect a larger object.
    `start` and `tag` are those of `open_object`.
    """
    retry, backend = retry or Retry(), backend_of(url)
    place = target.tell()
    # an abandoned attempt keeps running in its thread and must not write to a reused target
    writing, is_over = threading.Lock(), False

    def attempt() -> int:
        target.seek(place)
        left = sys.maxsize if most_bytes is None else most_bytes + 1
        with contextlib.closing(backend.open(url, retry, start, tag)) as source:
            while chunk := source.read(min(left, CHUNK_BYTES)):
                with writing:
                    if is_over:
                        return 0
                    target.write(chunk)
                left -= len(chunk)
        with writing:
            if is_over:
                return 0
            # truncate last, so that the target keeps its reserved disk space until then
            target.truncate()
            return target.tell() - place

    try:
        return _retrying("read", url, backend, retry, attempt)
    finally:
        with writing:
            is_over = True


def open_object(url: str, retry: Retry | None = None, *, start: int = 0, tag: str = "") -> BinaryIO:
    """Open an object as a stream that begins at the byte `start`.

    Retries and the deadline apply to opening it, not to reads. With a `tag` from a listing, raises
    `StoreError` if the object has changed since then.
    """
    retry, backend = retry or Retry(), backend_of(url)
    return _retrying("open", url, backend, retry, lambda: backend.open(url, retry, start, tag))


def upload_file(path: Path, url: str, retry: Retry | None = None) -> None:
    """Store a file as an object.

    The write is atomic, except on fsspec file systems that do not support atomic writes.
    """
    retry, backend = retry or Retry(), backend_of(url)
    _retrying(
        "write", url, backend, retry, lambda: backend.upload(path, url, retry), may_be_long=True
    )


def write_object(url: str, data: bytes, retry: Retry | None = None) -> None:
    """Store `data` as an object, with the guarantees of `upload_file`."""
    with scratch_file() as file:
        file.write(data)
        file.flush()
        upload_file(Path(file.name), url, retry)


def create_object(url: str, data: bytes, retry: Retry | None = None) -> bytes:
    """Store `data` as an object unless it exists, and return the bytes that it has then.

    If several clients do this at once, all get the bytes of one of them. In stores that cannot
    create in one step (fsspec, and GCS with an HMAC key), a client may get its own bytes although
    another client replaces them.
    """
    retry, backend = retry or Retry(), backend_of(url)
    with scratch_file() as file:
        file.write(data)
        file.flush()
        path = Path(file.name)
        _retrying(
            "write", url, backend, retry, lambda: backend.create(path, url, retry), may_be_long=True
        )
    # a lost answer makes an object of our own look like another client's
    return read_object(url, retry)


def delete_object(url: str, retry: Retry | None = None) -> None:
    """Delete an object if it exists."""
    retry, backend = retry or Retry(), backend_of(url)

    def attempt() -> None:
        try:
            backend.delete(url, retry)
        except Exception as error:
            if not backend.failure_kind(error).is_missing:
                raise

    _retrying("delete", url, backend, retry, attempt)


def list_objects(url: str, retry: Retry | None = None) -> list[StoredObject]:
    """List the objects below the folder `url`, at any depth, or the object `url` itself.

    They are sorted by URL. If there are none, the list is empty. A missing S3 or GCS bucket, or
    local folder, raises `StoreError`.
    """
    retry, backend = retry or Retry(), backend_of(url)
    found = _retrying("list", url, backend, retry, lambda: list(backend.list(url, retry)))
    return sorted(found, key=lambda item: item.url)


def _retrying(
    verb: str,
    url: str,
    backend: Backend,
    retry: Retry,
    attempt: Callable[[], T],
    *,
    may_be_long: bool = False,
) -> T:
    start, attempts, pause_s = time.monotonic(), 0, retry.pause_s
    has_no_limit = may_be_long or isinstance(backend, LocalStore)
    before: Exception | None = None
    while True:
        attempts += 1
        left_s = start + retry.deadline_s - time.monotonic()
        try:
            return attempt() if has_no_limit else call_with_timeout(left_s, attempt)
        except StoreError:
            raise
        except Exception as caught:
            # if the deadline cut this attempt short, the previous error is more informative
            is_cut_short = isinstance(caught, TimeoutError) and left_s < retry.timeout_s
            error = before if before is not None and is_cut_short else caught
            before = error
            elapsed_s = time.monotonic() - start
            kind = backend.failure_kind(error)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
            if not kind.is_transient or elapsed_s + pause_s > retry.deadline_s:
                times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                what = f"cannot {verb} {redact(url)} ({times}, {elapsed_s:.1f} s)"
                failure = StoreError(f"{what}: {_explain(error)}{_advise(kind, error)}", kind=kind)
                raise failure from (None if contains_secrets(error) else error)
        time.sleep(pause_s)


def _explain(error: BaseException) -> str:
    text = redact(" ".join(str(error).split()))[:500].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _advise(kind: FailureKind, error: BaseException) -> str:
    # an unclassified OSError, such as one about a local file, needs no advice
    is_plain = kind is FailureKind.OTHER and isinstance(error, OSError)
    return "" if is_plain else f". {_ADVICE[kind]}"
