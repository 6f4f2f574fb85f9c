"""Read, write, list, and delete objects, by location: a URL, and how long its requests are retried.

    corpus = Location("s3://bucket/corpus", Retry(deadline_s=60))
    corpus.join("index.json").read()       open, download, peek, list_objects, collect
    corpus.join("notes.txt").write(b"…")   write_pieces, upload, create, delete

The scheme of the URL selects the backend. Schemes without a backend here use fsspec.
`docs/contributing/extend.md` explains how to add a store.

Transient errors are retried with exponential backoff and jitter until `Retry.deadline_s`. Permanent
errors, such as a 404 or a wrong secret, are raised immediately. The deadline includes DNS and
connecting. It does not interrupt access to local files, and does not limit an upload in progress,
although google-cloud-storage uses it as a socket timeout. Reads from an open stream have no
deadline. Each read that uses the network is limited to `Retry.timeout_s`.

If a request fails, every method raises `StoreError`, with a `FailureKind` as its `kind`. Reads from
an open stream raise the client's errors instead. If the target of a download cannot be written to,
for instance because the disk is full, the target's `OSError` is raised.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import (
    CHUNK_BYTES,
    Backend,
    ObjectStream,
    Retry,
    StoredObject,
    Wanted,
)
from cloudload.data.storage.fsspec import STREAMING_ONLY, FsspecStore, StreamingStore
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.local import LocalStore
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.retries import TargetError, Watch, retrying
from cloudload.data.storage.s3 import GCSByHMAC, S3Store
from cloudload.data.storage.versions import UNKNOWN, Version
from cloudload.data.storage.web import WebStore
from cloudload.errors import StoreError
from cloudload.system import temp_files

Found = TypeVar("Found")

MOST_PEEKED = 1_000
"""Maximum number of names that `Location.peek` returns."""


@dataclass(frozen=True, repr=False)
class Location:
    """An object, or a folder of objects, and how long its requests are retried.

    A location can be sent to other processes, because each process opens its own backends. Two
    locations are equal if their URLs are. As text, a location is its URL without secrets.
    """

    url: str
    """A URL, or a local path."""
    retry: Retry = field(default=Retry(), compare=False)
    split: str | None = field(default=None, compare=False)
    """The last part of the URL of a dataset, if its user named it as a split; for messages."""

    def __str__(self) -> str:
        return redact(self.url)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"

    @property
    def remote(self) -> str:
        """The URL without the split."""
        return self.url.removesuffix(f"/{self.split.rstrip('/')}") if self.split else self.url

    @property
    def is_local(self) -> bool:
        """Whether the URL is a path or a `file://` URL."""
        return urls.is_local(self.url)

    def join(self, name: str) -> Location:
        """The location of `name` below this one; this one itself if `name` is empty."""
        return self.at(urls.join_url(self.url, name))

    def at(self, url: str) -> Location:
        """The location of another URL, with the same retry."""
        return Location(url, self.retry)

    def within(self, deadline_s: float) -> Location:
        """This location, with a deadline of at most `deadline_s`."""
        retry = replace(self.retry, deadline_s=min(self.retry.deadline_s, deadline_s))
        return replace(self, retry=retry)

    def describe_endpoint(self) -> str:
        """The endpoint that serves the URL, as `Backend.describe_endpoint` describes it."""
        return self.backend.describe_endpoint(self.url)

    @property
    def backend(self) -> Backend:
        """The backend of the URL's scheme, created on first use.

        Each process creates its own backends, so a forked worker never uses an inherited
        connection.
        """
        scheme, timeout_s = urls.scheme_of(self.url), self.retry.timeout_s
        key = (os.getpid(), scheme, timeout_s)
        # if several threads create a backend at the same time, keep the first
        return opened.get(key) or opened.setdefault(
            key, BACKENDS.get(scheme, FsspecStore)(timeout_s)
        )

    # ------------------------------------------------------------ read

    def read(self, most_bytes: int | None = None) -> bytes:
        """Return the bytes of an object, or with `most_bytes`, only the first `most_bytes` + 1."""
        return self.read_version(most_bytes)[0]

    def read_if_exists(self, most_bytes: int | None = None) -> bytes | None:
        """Read an object as `read` does, or return None if it does not exist."""
        try:
            return self.read(most_bytes)
        except StoreError as error:
            if error.is_missing:
                return None
            raise

    def read_version(
        self, most_bytes: int | None = None, unless: Callable[[Version], bool] | None = None
    ) -> tuple[bytes, Version]:
        """Read an object as `read` does, and also return its version, as the store reports it.

        If `unless(version)` is true, reads only the headers of the response, and returns b"".
        """
        buffer = io.BytesIO()
        version = self.download(buffer, most_bytes, unless=unless)
        return buffer.getvalue(), version

    def read_range(self, start: int, stop: int, tag: str = "", watch: Watch | None = None) -> bytes:
        """Return the bytes of an object from `start` to before `stop`, and request no others.

        `tag` and `watch` have the same meaning as in `download`. Also raises `StoreError` if the
        object ends before `stop`.
        """
        buffer = io.BytesIO()
        self.download(buffer, watch=watch, start=start, stop=stop, tag=tag)
        if buffer.tell() < stop - start:
            raise StoreError(
                f"{self} ends before byte {stop:,}, after {buffer.tell():,} of the "
                f"{stop - start:,} bytes to read. The file was cut off or replaced. Copy it again"
            )
        return buffer.getvalue()

    def open(self, *, start: int = 0, tag: str = "") -> BinaryIO:
        """Open an object as a stream that begins at the byte `start`.

        Retries and the deadline apply to opening it, not to reads. With a `tag` from a listing,
        raises `StoreError` if the object has changed since then.
        """
        backend = self.backend
        return retrying(
            "open", self.url, backend, self.retry, lambda _: self._open(backend, start, tag)
        )

    def _open(
        self, backend: Backend, start: int, tag: str, stop: int | None = None
    ) -> ObjectStream:
        try:
            return backend.open(self.url, start, tag, stop)
        except Exception as error:
            # if the object is now too short for the range, the answer does not have its tag
            if tag and clients.status_of(error) == 416:
                for found in backend.list(self.url):
                    clients.check_tag(self.url, tag, found.tag)
            raise

    def download(
        self,
        target: BinaryIO,
        most_bytes: int | None = None,
        watch: Watch | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        tag: str = "",
        unless: Callable[[Version], bool] | None = None,
    ) -> Version:
        """Write an object to the seekable `target`, from its position, and return its version.

        `target` is truncated after the object, and is then at its end. A retry starts over. With
        `most_bytes`, only the first `most_bytes` + 1 bytes are written, so that the caller can
        detect a larger object. A caller that passes a `watch` reports its own waits; see `retries`.
        `start` and `tag` have the same meaning as in `open`. With `stop`, requests and writes only
        the bytes before it. If `unless(version)` is true, downloads nothing.
        """
        backend = self.backend
        before = target.tell()
        # an attempt that timed out keeps running in its thread, but must not write to the target
        writing, is_over = threading.Lock(), False

        def attempt(receive: Callable[[], None]) -> Version:
            target.seek(before)
            left = sys.maxsize if most_bytes is None else most_bytes + 1
            left = left if stop is None else min(left, stop - start)
            with contextlib.closing(self._open(backend, start, tag, stop)) as source:
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
            return retrying("read", self.url, backend, self.retry, attempt, watch=watch)
        except TargetError as failure:
            raise failure.error from None
        finally:
            with writing:
                is_over = True

    def pin(self) -> Location:
        """The location of what is here now: of a commit, for a branch on the Hugging Face Hub.

        Other stores have no immutable folders, so their locations stay the same.
        """
        backend = self.backend
        url = retrying("read", self.url, backend, self.retry, lambda _: backend.pin(self.url))
        return replace(self, url=url)

    # ------------------------------------------------------------ write

    def upload(self, path: Path) -> None:
        """Store a file as an object.

        The write is atomic, except on fsspec file systems that do not support atomic writes.
        """
        backend, deadline_s = self.backend, self.retry.deadline_s
        retrying(
            "write",
            self.url,
            backend,
            self.retry,
            lambda _: backend.upload(path, self.url, deadline_s),
            may_be_long=True,
        )

    def write(self, data: bytes) -> None:
        """Store `data` as an object, with the guarantees of `upload`."""
        self.write_pieces([data])

    def write_pieces(self, pieces: Iterable[bytes]) -> None:
        """Store consecutive pieces as one object, with the guarantees of `upload`."""
        with temp_files.scratch_file() as file:
            file.writelines(pieces)
            file.flush()
            self.upload(Path(file.name))

    def create(self, data: bytes) -> bytes:
        """Store `data` as an object unless it exists, and return the object's bytes.

        If several clients create the object at the same time, one of them succeeds, and all of them
        receive its bytes. If one of them removes it before another has read it, the other creates
        it again. In stores without atomic creation (fsspec, and GCS with an HMAC key), a client may
        receive its own bytes even though another client then replaces them.
        """
        self._create(data)
        # always read it, because if a response was lost, we cannot know which client created it
        if (found := self.read_if_exists()) is not None:
            return found
        self._create(data)
        return self.read()

    def _create(self, data: bytes) -> None:
        """Store `data` as an object unless it exists."""
        backend, deadline_s = self.backend, self.retry.deadline_s
        with temp_files.scratch_file() as file:
            file.write(data)
            file.flush()
            path = Path(file.name)
            retrying(
                "write",
                self.url,
                backend,
                self.retry,
                lambda _: backend.create(path, self.url, deadline_s),
                may_be_long=True,
            )

    def delete(self) -> None:
        """Delete an object if it exists."""
        backend = self.backend

        def attempt(_: Callable[[], None]) -> None:
            try:
                backend.delete(self.url)
            except Exception as error:
                if not backend.failure_kind(error).is_missing:
                    raise

        retrying("delete", self.url, backend, self.retry, attempt)

    # ------------------------------------------------------------ list

    def list_objects(self) -> list[StoredObject]:
        """List the objects below this folder, at any depth, or the object itself.

        The list is sorted by URL. It is empty if there are no objects. Local links are followed. If
        a part cannot be listed, or the S3 or GCS bucket or the local folder does not exist,
        `StoreError` is raised.
        """
        return self.collect(lambda found: sorted(found, key=lambda item: item.url))

    def list_if_exists(self) -> list[StoredObject]:
        """List objects as `list_objects` does; none if the bucket or the folder does not exist."""
        try:
            return self.list_objects()
        except StoreError as error:
            if error.is_missing:
                return []
            raise

    def collect(
        self, collect: Callable[[Iterator[StoredObject]], Found], wanted: Wanted | None = None
    ) -> Found:
        """Call `collect` with the objects that `list_objects` lists, in any order.

        Returns the result of `collect`. In a local listing, a folder that is not `wanted` is not
        opened, and an object whose URL ends in `/` takes its place. A link to nothing that is not
        wanted is an object, not an error. Other stores list all objects.

        Even for a long listing, memory holds only the objects that `collect` keeps. A retry calls
        `collect` again, even if the previous attempt is still running, so `collect` must have no
        side effects.
        """
        backend = self.backend

        def list_all() -> Iterator[StoredObject]:
            if wanted is not None and isinstance(backend, LocalStore):
                return backend.list(self.url, wanted)
            return backend.list(self.url)

        def attempt(receive: Callable[[], None]) -> Found:
            def received() -> Iterator[StoredObject]:
                for item in list_all():
                    receive()
                    yield item

            return collect(received())

        return retrying("list", self.url, backend, self.retry, attempt)

    def peek(self) -> list[str]:
        """List at most 1,000 names as `list_folder` does. If there are more, some are missing.

        This sends one request, so it is fast even for a large folder, except on some fsspec file
        systems and web servers.
        """
        return self.list_folder(MOST_PEEKED)

    def list_folder(self, most: int | None = None) -> list[str]:
        """List the names of objects and folders directly in this folder, sorted, at most `most`.

        The name of a folder ends in `/`. Sends a request for every 1,000 names.
        """
        backend = self.backend
        return sorted(
            retrying(
                "list",
                self.url,
                backend,
                self.retry,
                lambda _: list(islice(backend.peek(self.url), most)),
            )
        )


def _make_gcs(timeout_s: float) -> Backend:
    has_key = "GCS_KEY" in os.environ and "GCS_SECRET" in os.environ
    return GCSByHMAC(timeout_s) if has_key else GCSStore(timeout_s)


BACKENDS: dict[str, Callable[[float], Backend]] = {
    "file": LocalStore,
    "s3": S3Store,
    "gs": _make_gcs,
    **dict.fromkeys(("http", "https"), WebStore),
    **dict.fromkeys(STREAMING_ONLY, StreamingStore),
}

opened: dict[tuple[int, str, float], Backend] = {}
"""The backends of each process, by its ID, their scheme, and their timeout."""
