"""Read, write, list, and delete objects, in the store that the scheme of their URL names.

    read_object  open_object  download_object        list_objects  collect_objects  peek_folder
    write_object  write_pieces  create_object  upload_file  delete_object

`read_object_version` and `download_object_version` also return the object's version, as the store
reports it. `name_endpoint` names the server of a URL. Schemes without a backend here use fsspec.
`docs/contributing/extend.md` explains how to add a store.

Transient errors are retried with exponential backoff and jitter until `Retry.deadline_s`. Permanent
errors, such as a 404 or a wrong secret, are raised immediately. The deadline includes DNS and
connecting. It does not interrupt access to local files, and does not limit an upload in progress,
although google-cloud-storage uses it as a socket timeout. Reads from an open stream have no
deadline. Each read that uses the network is limited to `Retry.timeout_s`.

If a request fails, every function raises `StoreError`, with a `FailureKind` as its `kind`. Reads
from an open stream raise the client's errors instead. If the target of a download cannot be written
to, for instance because the disk is full, the target's `OSError` is raised.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from cloudload.data.storage import urls
from cloudload.data.storage.base import CHUNK_BYTES, Backend, Retry, StoredObject, Wanted
from cloudload.data.storage.fsspec import FsspecStore
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.local import LocalStore
from cloudload.data.storage.retries import TargetError, Watch, retrying
from cloudload.data.storage.s3 import GCSByHMAC, S3Store
from cloudload.data.storage.streaming import STREAMING_ONLY, StreamingStore
from cloudload.data.storage.versions import UNKNOWN, Version
from cloudload.errors import StoreError
from cloudload.system import temp_files

Found = TypeVar("Found")

MOST_PEEKED = 1_000
"""Maximum number of names that `peek_folder` returns."""


def read_object(url: str, retry: Retry | None = None, most_bytes: int | None = None) -> bytes:
    """Return the bytes of an object, or with `most_bytes`, only the first `most_bytes` + 1."""
    return read_object_version(url, retry, most_bytes)[0]


def read_object_version(
    url: str,
    retry: Retry | None = None,
    most_bytes: int | None = None,
    unless: Callable[[Version], bool] | None = None,
) -> tuple[bytes, Version]:
    """Read an object as `read_object` does, and also return its version.

    If `unless(version)` is true, reads only the headers of the response, and returns b"".
    """
    buffer = io.BytesIO()
    version = download_object_version(url, buffer, retry, most_bytes, unless=unless)
    return buffer.getvalue(), version


def name_endpoint(url: str) -> str:
    """The endpoint that serves a URL, as `Backend.describe_endpoint` describes it."""
    return backend_of(url).describe_endpoint(url)


def download_object(
    url: str,
    target: BinaryIO,
    retry: Retry | None = None,
    most_bytes: int | None = None,
    watch: Watch | None = None,
    *,
    start: int = 0,
    tag: str = "",
) -> int:
    """Write an object to the seekable `target` from its current position. Return the byte count.

    `target` is truncated after the object. A retry starts over. With `most_bytes`, only the first
    `most_bytes` + 1 bytes are written, so that the caller can detect a larger object. A caller that
    passes a `watch` reports its own waits; see `retries`. `start` and `tag` have the same meaning
    as in `open_object`.
    """
    before = target.tell()
    download_object_version(url, target, retry, most_bytes, watch, start=start, tag=tag)
    return target.tell() - before


def download_object_version(
    url: str,
    target: BinaryIO,
    retry: Retry | None = None,
    most_bytes: int | None = None,
    watch: Watch | None = None,
    *,
    start: int = 0,
    tag: str = "",
    unless: Callable[[Version], bool] | None = None,
) -> Version:
    """Download an object as `download_object` does, but return its version.

    Leaves `target` positioned at the end of the object. If `unless(version)` is true, downloads
    nothing.
    """
    retry, backend = retry or Retry(), backend_of(url)
    before = target.tell()
    # an attempt that timed out keeps running in its thread, but must not write to the target
    writing, is_over = threading.Lock(), False

    def attempt(receive: Callable[[], None]) -> Version:
        target.seek(before)
        left = sys.maxsize if most_bytes is None else most_bytes + 1
        with contextlib.closing(backend.open(url, retry, start, tag)) as source:
            if unless is not None and unless(source.version):
                return source.version
            while chunk := source.read(min(left, CHUNK_BYTES)):
                with writing:
                    if is_over:
                        return UNKNOWN
                    try:
                        target.write(chunk)
                    except OSError as error:
                        raise TargetError(error) from error
                receive()
                left -= len(chunk)
        with writing:
            if is_over:
                return UNKNOWN
            # truncate last, so that the target keeps its reserved disk space until then
            target.truncate()
            return source.version

    try:
        return retrying("read", url, backend, retry, attempt, watch=watch)
    except TargetError as failure:
        raise failure.error from None
    finally:
        with writing:
            is_over = True


def open_object(url: str, retry: Retry | None = None, *, start: int = 0, tag: str = "") -> BinaryIO:
    """Open an object as a stream that begins at the byte `start`.

    Retries and the deadline apply to opening it, not to reads. With a `tag` from a listing, raises
    `StoreError` if the object has changed since then.
    """
    retry, backend = retry or Retry(), backend_of(url)
    return retrying("open", url, backend, retry, lambda _: backend.open(url, retry, start, tag))


def upload_file(path: Path, url: str, retry: Retry | None = None) -> None:
    """Store a file as an object.

    The write is atomic, except on fsspec file systems that do not support atomic writes.
    """
    retry, backend = retry or Retry(), backend_of(url)
    retrying(
        "write", url, backend, retry, lambda _: backend.upload(path, url, retry), may_be_long=True
    )


def write_object(url: str, data: bytes, retry: Retry | None = None) -> None:
    """Store `data` as an object, with the guarantees of `upload_file`."""
    write_pieces(url, [data], retry)


def write_pieces(url: str, pieces: Iterable[bytes], retry: Retry | None = None) -> None:
    """Store consecutive pieces as one object, with the guarantees of `upload_file`."""
    with temp_files.scratch_file() as file:
        file.writelines(pieces)
        file.flush()
        upload_file(Path(file.name), url, retry)


def create_object(url: str, data: bytes, retry: Retry | None = None) -> bytes:
    """Store `data` as an object unless it exists, and return the object's bytes.

    If several clients create the object at the same time, one of them succeeds, and all of them
    receive its bytes. If one of them removes it before another has read it, the other creates it
    again. In stores without atomic creation (fsspec, and GCS with an HMAC key), a
    client may receive its own bytes even though another client then replaces them.
    """
    _create(url, data, retry or Retry())
    # always read it, because if a response was lost, we cannot know which client created the object
    try:
        return read_object(url, retry)
    except StoreError as error:
        if not error.is_missing:
            raise
    _create(url, data, retry or Retry())
    return read_object(url, retry)


def _create(url: str, data: bytes, retry: Retry) -> None:
    """Store `data` as an object unless it exists."""
    backend = backend_of(url)
    with temp_files.scratch_file() as file:
        file.write(data)
        file.flush()
        path = Path(file.name)
        retrying(
            "write",
            url,
            backend,
            retry,
            lambda _: backend.create(path, url, retry),
            may_be_long=True,
        )


def delete_object(url: str, retry: Retry | None = None) -> None:
    """Delete an object if it exists."""
    retry, backend = retry or Retry(), backend_of(url)

    def attempt(_: Callable[[], None]) -> None:
        try:
            backend.delete(url, retry)
        except Exception as error:
            if not backend.failure_kind(error).is_missing:
                raise

    retrying("delete", url, backend, retry, attempt)


def list_objects(url: str, retry: Retry | None = None) -> list[StoredObject]:
    """List the objects below the folder `url`, at any depth, or the object `url` itself.

    The list is sorted by URL. It is empty if there are no objects. Local links are followed. If a
    part cannot be listed, or the S3 or GCS bucket or the local folder does not exist, `StoreError`
    is raised.
    """
    return collect_objects(url, lambda found: sorted(found, key=lambda item: item.url), retry)


def collect_objects(
    url: str,
    collect: Callable[[Iterator[StoredObject]], Found],
    retry: Retry | None = None,
    wanted: Wanted | None = None,
) -> Found:
    """Call `collect` with the objects that `list_objects` lists, in any order. Return its result.

    In a local listing, a folder that is not `wanted` is not opened, and an object whose URL ends in
    `/` takes its place. A link to nothing that is not wanted is an object, not an error. Other
    stores list all objects.

    Even for a long listing, memory holds only the objects that `collect` keeps. A retry calls
    `collect` again, even if the previous attempt is still running, so `collect` must have no side
    effects.
    """
    retry, backend = retry or Retry(), backend_of(url)

    def list_all() -> Iterator[StoredObject]:
        if wanted is not None and isinstance(backend, LocalStore):
            return backend.list(url, retry, wanted)
        return backend.list(url, retry)

    def attempt(receive: Callable[[], None]) -> Found:
        def received() -> Iterator[StoredObject]:
            for item in list_all():
                receive()
                yield item

        return collect(received())

    return retrying("list", url, backend, retry, attempt)


def peek_folder(url: str, retry: Retry | None = None) -> list[str]:
    """List at most 1,000 names of objects and folders directly in the folder `url`, sorted.

    The name of a folder ends in `/`. If there are more names, some are missing. This sends one
    request, so it is fast even for a large folder, except on some fsspec file systems and web
    servers.
    """
    retry, backend = retry or Retry(), backend_of(url)

    def attempt(_: Callable[[], None]) -> list[str]:
        return list(islice(backend.peek(url, retry), MOST_PEEKED))

    return sorted(retrying("list", url, backend, retry, attempt))


def _make_gcs() -> Backend:
    return GCSByHMAC() if "GCS_KEY" in os.environ and "GCS_SECRET" in os.environ else GCSStore()


BACKENDS: dict[str, Callable[[], Backend]] = {
    "file": LocalStore,
    "s3": S3Store,
    "gs": _make_gcs,
    **dict.fromkeys(STREAMING_ONLY, StreamingStore),
}

opened: dict[tuple[int, str], Backend] = {}


def backend_of(url: str) -> Backend:
    """Return the backend of a URL's scheme, and create it on first use.

    Each process creates its own backends, so a forked worker never uses an inherited connection.
    """
    scheme = urls.scheme_of(url)
    key = (os.getpid(), scheme)
    # if several threads create a backend at the same time, keep the first
    return opened.get(key) or opened.setdefault(key, BACKENDS.get(scheme, FsspecStore)())
