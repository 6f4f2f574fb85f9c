"""The backend for any scheme that fsspec reaches."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.errors import StoreError
from cloudload.storage.base import CHUNK_BYTES, Retry, StoredObject, Trouble
from cloudload.storage.clients import Counted, in_time, trouble_of_any
from cloudload.storage.streaming import StreamingStore
from cloudload.storage.urls import scheme_of

_STREAMING_TOO = ("oci", "hf")


class FsspecStore:
    """Any scheme that fsspec knows, by whatever package serves it."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        if scheme_of(url) in _STREAMING_TOO and not _is_served(url):
            return StreamingStore().open(url, retry)
        return in_time(retry.timeout_s, lambda: self._open(url, retry))

    def _open(self, url: str, retry: Retry) -> BinaryIO:
        filesystem = _filesystem(url)
        # one plain request: a look at the object beforehand would take any failure for a missing
        # object
        options = {"block_size": 0, "size": 1} if scheme_of(url) in ("http", "https") else {}
        with _forgotten_on_failure(filesystem):
            opened = filesystem.open(url, "rb", **options)
        size = getattr(opened, "size", None)
        body = Counted(
            _InTime(opened, filesystem, retry.timeout_s), size if isinstance(size, int) else None
        )
        return io.BufferedReader(body, CHUNK_BYTES)

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        _filesystem(url).put_file(str(path), url)

    def delete(self, url: str, retry: Retry) -> None:
        _filesystem(url).rm_file(url)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        filesystem = _filesystem(url)
        for name, info in filesystem.find(url, detail=True).items():
            # by the scheme that it was asked by: fsspec calls az:// abfs://
            path = filesystem.unstrip_protocol(name).partition("://")[2]
            yield StoredObject(f"{scheme_of(url)}://{path}", int(info.get("size") or 0))

    def trouble(self, error: BaseException) -> Trouble:
        return trouble_of_any(error)


class _InTime:
    """A body of a client that knows no time limit."""

    def __init__(self, body: Any, filesystem: Any, timeout_s: float) -> None:
        self._body, self._filesystem, self._timeout_s = body, filesystem, timeout_s

    def read(self, size: int) -> bytes:
        with _forgotten_on_failure(self._filesystem):
            return in_time(self._timeout_s, lambda: bytes(self._body.read(size)))

    def close(self) -> None:
        # of a server that has gone silent there is no answer to wait for
        with contextlib.suppress(TimeoutError):
            in_time(min(self._timeout_s, 1.0), self._body.close)


@contextlib.contextmanager
def _forgotten_on_failure(filesystem: Any) -> Iterator[None]:
    """fsspec keeps its file systems, and with them a connection that broke."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception:
        type(filesystem).clear_instance_cache()
        raise


def _filesystem(url: str) -> Any:
    try:
        import fsspec

        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"no way to read {scheme_of(url)}:// ({error}). Install fsspec "
            "and the package named there"
        ) from None


def _is_served(url: str) -> bool:
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme_of(url))
    except (ImportError, ValueError):
        return False
    return True
