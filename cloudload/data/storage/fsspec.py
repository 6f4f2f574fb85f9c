"""The backends for any scheme that fsspec or StreamingDataset's downloaders support."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.data.storage.hub import check_connection, pin_commit
from cloudload.data.storage.redaction import redact
from cloudload.data.storage.versions import Version, version_of_details
from cloudload.errors import FailureKind, StoreError
from cloudload.system import temp_files

STREAMING_ONLY = ("azure", "azure-dl", "alipan", "dbfs")
"""The schemes that need this backend. fsspec lacks them, supports them under other names, or cannot
open them from the URL alone."""

# for these schemes, use StreamingDataset's downloader to read if the fsspec package is missing
_STREAMING_TOO = ("oci", "hf")


class FsspecStore(Backend):
    """The backend for any scheme that fsspec supports.

    Uploads are atomic only if the scheme's package makes them atomic.
    """

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        if urls.scheme_of(url) in _STREAMING_TOO and not _is_served(url):
            return StreamingStore(self._timeout_s).open(url, start, tag, stop)
        if tag:
            found = clients.call_with_timeout(self._timeout_s, lambda: _resolve(url)[0].info(url))
            clients.check_tag(url, tag, _tag(found))
        return clients.call_with_timeout(self._timeout_s, lambda: self._open(url, start))

    def _open(self, url: str, start: int) -> ObjectStream:
        filesystem, _ = _resolve(url)
        with _evicted_on_failure(filesystem):
            opened = filesystem.open(url, "rb")
            if start:
                opened.seek(start)
        size = None if start else getattr(opened, "size", None)
        body = _TimeLimitedBody(opened, filesystem, self._timeout_s)
        checked = clients.LengthCheckedReader(body, size if isinstance(size, int) else None)
        return ObjectStream(checked, _version_of(opened))

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        _resolve(url)[0].put_file(str(path), url)

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        if not _resolve(url)[0].exists(url):
            self.upload(path, url, deadline_s)

    def delete(self, url: str) -> None:
        _resolve(url)[0].rm_file(url)

    def list(self, url: str) -> Iterator[StoredObject]:
        filesystem, root = _resolve(url)
        for name, info in _find(filesystem, root):
            # extend the caller's URL, because fsspec's name may lack the host or change the scheme
            below = name.removeprefix(root.rstrip("/"))
            yield StoredObject(url.rstrip("/") + below, int(info.get("size") or 0), _tag(info))

    def peek(self, url: str) -> Iterator[str]:
        filesystem, root = _resolve(url)
        for info in filesystem.ls(root, detail=True):
            path = str(info["name"]).rstrip("/")
            if path != root.rstrip("/"):  # a listing of an object contains the object itself
                is_folder = info.get("type") == "directory"
                yield path.rpartition("/")[2] + ("/" if is_folder else "")

    def pin(self, url: str) -> str:
        if urls.scheme_of(url) != "hf":
            return url
        _resolve(url)  # checks the connection
        return pin_commit(url)

    def failure_kind(self, error: BaseException) -> FailureKind:
        return clients.failure_kind_of_any(error)


class StreamingStore(Backend):
    """The backend that uses StreamingDataset's downloaders.

    They download whole objects, and cannot write or list.
    """

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        try:
            from streaming.base.storage.download import CloudDownloader
        except ImportError as error:
            raise StoreError(
                f"cannot read {urls.scheme_of(url)}:// URLs ({error}). Install Streaming: pip "
                "install mosaicml-streaming"
            ) from None
        with (
            temp_files.explained_full_disk(),
            tempfile.TemporaryDirectory(prefix="cloudload-download-") as folder,
        ):
            path = Path(folder, "object")
            try:
                CloudDownloader.direct_download(url, str(path), self._timeout_s)
            except ImportError as error:
                raise StoreError(
                    f"cannot read {urls.scheme_of(url)}:// URLs ({error}). Install the missing "
                    "package"
                ) from None
            file = io.FileIO(path)  # the open file stays readable after the folder is removed
            file.seek(start)
            return ObjectStream(file)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise io.UnsupportedOperation(
            "cloudload can only read from this store. To write or list, use a path, s3://, gs://, "
            "or a scheme that fsspec supports"
        )

    upload = create = delete = list = peek = _refuse

    def failure_kind(self, error: BaseException) -> FailureKind:
        return clients.failure_kind_of_any(error)


def _find(filesystem: Any, root: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and details of each file below a folder, or of the file `root` itself.

    fsspec's own `find` leaves out folders that it cannot list, without an error.
    """
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    kind, is_empty = type(filesystem), True
    is_async = isinstance(filesystem, AsyncFileSystem)
    name, base = ("_find", AsyncFileSystem) if is_async else ("find", AbstractFileSystem)
    if getattr(kind, name) is not getattr(base, name):
        yield from filesystem.find(root, detail=True).items()
        return
    for item in _walk(filesystem, root):
        is_empty = False
        yield item
    if is_empty and filesystem.isfile(root):
        yield root, filesystem.info(root)


def _walk(filesystem: Any, root: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            listed = filesystem.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it is a file, or another client removed it in the meantime
        for info in listed:
            name = str(info["name"])
            if info.get("type") != "directory":
                yield name, info
            elif name.rstrip("/") != folder.rstrip("/"):  # a folder may list itself
                waiting.append(name)


def _version_of(opened: Any) -> Version:
    """Return the version of a file that fsspec has opened. This sends no request."""
    known = getattr(opened, "__dict__", {})
    # `details` would send a request unless `_details` is set
    return version_of_details({**known, **(known.get("_details") or {})})


class _TimeLimitedBody:
    """A body whose reads have a timeout, because the client's own reads may have none."""

    def __init__(self, body: Any, filesystem: Any, timeout_s: float) -> None:
        self._body, self._filesystem, self._timeout_s = body, filesystem, timeout_s

    def read(self, size: int) -> bytes:
        with _evicted_on_failure(self._filesystem):
            return clients.call_with_timeout(self._timeout_s, lambda: bytes(self._body.read(size)))

    def close(self) -> None:
        # closing may also block if the server has stopped responding
        with contextlib.suppress(TimeoutError):
            clients.call_with_timeout(min(self._timeout_s, 1.0), self._body.close)


@contextlib.contextmanager
def _evicted_on_failure(filesystem: Any) -> Iterator[None]:
    """If the block raises an error, clear fsspec's cache of file systems of this class.

    The error may be due to a cached connection that is broken. A `FileNotFoundError` is not.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception:
        type(filesystem).clear_instance_cache()
        raise


def _tag(info: Mapping[str, Any]) -> str:
    """The ETag of an object, or "" if the file system reports none."""
    return str(info.get("ETag") or info.get("etag") or info.get("blob_id") or "").strip('"')


def _resolve(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the URL's path in it.

    Raises `StoreError` if the scheme is unknown, its package is missing, its settings are invalid,
    or the Hugging Face Hub cannot be reached.
    """
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(url)
        if type(filesystem).__module__.startswith("huggingface_hub."):
            check_connection()
        return filesystem, str(path)
    except (ImportError, ValueError) as error:
        if ours := urls.SCHEME_ALIASES.get(urls.scheme_of(url)):
            meant = redact(f"{ours}://{url.partition('://')[2]}")
            raise StoreError(
                f"cannot access {urls.scheme_of(url)}:// URLs with the packages installed here "
                f"({error})"
                f". Use {meant}, which needs no other package"
            ) from None
        raise StoreError(
            f"cannot access {urls.scheme_of(url)}:// URLs ({error}). If fsspec or the package for "
            "this "
            "scheme is missing, install it. Otherwise, check the URL and the settings for this "
            "scheme"
        ) from None


def _is_served(url: str) -> bool:
    try:
        import fsspec

        fsspec.get_filesystem_class(urls.scheme_of(url))
    except (ImportError, ValueError):
        return False
    return True
