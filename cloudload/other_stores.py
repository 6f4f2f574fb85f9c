"""Stores without a client of our own: folders, whatever fsspec reaches, and what only StreamingDataset's downloaders reach."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.errors import StoreError
from cloudload.locations import local_path, scheme_of
from cloudload.network import Counted, in_time, status_of, trouble_of_connection, trouble_of_status
from cloudload.store_types import CHUNK_BYTES, Retry, StoredObject, Trouble

# in place of fsspec, or where the package that it asks for is not installed
STREAMING_ONLY = ("azure", "azure-dl", "alipan", "dbfs")
_STREAMING_TOO = ("oci", "hf")


class LocalStore:
    """Files of this machine."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        path = local_path(url)
        # opening a pipe waits for its other end, and a device may never end
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(f"{path} is a pipe or a device, and not a regular file. Put the file itself there")
        return path.open("rb")

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        import shutil

        target = local_path(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(path, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, url: str, retry: Retry) -> None:
        local_path(url).unlink()

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        root = local_path(url)
        if root.is_file():
            yield StoredObject(url, root.stat().st_size)
        elif not root.is_dir():
            raise FileNotFoundError(f"no such file or folder: {root}")
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    yield StoredObject(str(path), path.stat().st_size)

    def trouble(self, error: BaseException) -> Trouble:
        return Trouble.MISSING_OBJECT if isinstance(error, FileNotFoundError | NotADirectoryError) else Trouble.OTHER


class FsspecStore:
    """Any scheme that fsspec knows, by whatever package serves it."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        if scheme_of(url) in _STREAMING_TOO and not _is_served(url):
            return StreamingStore().open(url, retry)
        return in_time(retry.timeout_s, lambda: self._open(url, retry))

    def _open(self, url: str, retry: Retry) -> BinaryIO:
        filesystem = _filesystem(url)
        # one plain request: a look at the object beforehand would take any failure for a missing object
        options = {"block_size": 0, "size": 1} if scheme_of(url) in ("http", "https") else {}
        with _forgotten_on_failure(filesystem):
            opened = filesystem.open(url, "rb", **options)
        size = getattr(opened, "size", None)
        body = Counted(_InTime(opened, filesystem, retry.timeout_s), size if isinstance(size, int) else None)
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
        return _trouble_of_any(error)


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


class StreamingStore:
    """The downloaders of StreamingDataset, which can only read, and only whole objects."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        try:
            from streaming.base.storage.download import CloudDownloader
        except ImportError as error:
            raise StoreError(
                f"no way to read {scheme_of(url)}:// ({error}). Install Streaming: pip install 'cloudload[streaming]'"
            ) from None
        with tempfile.TemporaryDirectory(prefix="cloudload-download-") as folder:
            path = Path(folder, "object")
            try:
                CloudDownloader.direct_download(url, str(path), retry.timeout_s)
            except ImportError as error:
                raise StoreError(f"no way to read {scheme_of(url)}:// ({error})") from None
            return path.open("rb")  # its bytes stay until it is closed

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        raise _only_reads(url)

    def delete(self, url: str, retry: Retry) -> None:
        raise _only_reads(url)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        raise _only_reads(url)

    def trouble(self, error: BaseException) -> Trouble:
        return _trouble_of_any(error)


def _only_reads(url: str) -> StoreError:
    return StoreError(f"{scheme_of(url)}:// can only be read. Write and list in s3://, gs://, or what fsspec reaches")


def _filesystem(url: str) -> Any:
    try:
        import fsspec

        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:
        raise StoreError(f"no way to read {scheme_of(url)}:// ({error}). Install fsspec and the package named there") from None


def _is_served(url: str) -> bool:
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme_of(url))
    except (ImportError, ValueError):
        return False
    return True


def _trouble_of_any(error: BaseException) -> Trouble:
    """By what the clients' errors have in common: Python's own classes, an HTTP status, a broken connection."""
    if isinstance(error, FileNotFoundError):
        return Trouble.MISSING_OBJECT
    if isinstance(error, PermissionError):
        return Trouble.DENIED
    # of paramiko and azure, which are not imported for this
    if {kind.__name__ for kind in type(error).__mro__} & {"AuthenticationException", "ClientAuthenticationError"}:
        return Trouble.BAD_CREDENTIALS
    if (status := status_of(error)) is not None:
        return trouble_of_status(status)
    if type(error).__module__.startswith("paramiko"):  # of a session that broke, once it was let in
        return Trouble.UNREACHABLE
    return trouble_of_connection(error)
