"""The backend for files on this machine."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudload.errors import FailureKind
from cloudload.storage.base import ObjectStream, Retry, StoredObject
from cloudload.storage.clients import check_tag
from cloudload.storage.urls import local_path
from cloudload.storage.versions import version_of_file
from cloudload.system.temp_files import creation, register, unregister


class LocalStore:
    """The backend for paths and `file://` URLs."""

    def open(self, url: str, retry: Retry, start: int = 0, tag: str = "") -> ObjectStream:
        path = local_path(url)
        # opening a pipe blocks until a writer opens it, and a device may never end
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(f"{path} is a pipe or a device, not a regular file. Use a regular file")
        file = io.FileIO(path)
        check_tag(url, tag, _tag(os.fstat(file.fileno())))
        file.seek(start)
        return ObjectStream(file, version_of_file(file.fileno()))

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        with _copied(path, local_path(url)) as (temporary, target):
            temporary.replace(target)

    def create(self, path: Path, url: str, retry: Retry) -> None:
        with _copied(path, local_path(url)) as (temporary, target):
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                return
            except OSError:  # the file system has no hard links
                if not target.exists():
                    temporary.replace(target)

    def delete(self, url: str, retry: Retry) -> None:
        local_path(url).unlink()

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        root = local_path(url)
        if root.is_file():
            yield _describe(url, root.stat())
        elif not root.is_dir():
            raise FileNotFoundError(f"{root} does not exist")
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                # another process may remove the file
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        yield _describe(str(path), path.stat())

    def peek(self, url: str, retry: Retry) -> Iterator[str]:
        with os.scandir(local_path(url)) as entries:
            for entry in entries:
                yield f"{entry.name}/" if entry.is_dir() else entry.name

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER

    def describe_endpoint(self, url: str) -> str:
        return ""


@contextlib.contextmanager
def _copied(path: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Copy `path` to a temporary file next to `target`. Yield the paths (copy, target)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # the name is unique among all threads and machines that share the folder
    temporary = target.with_name(f".{target.name}.{secrets.randbits(62)}.tmp")
    with creation():
        register(temporary)
    try:
        shutil.copyfile(path, temporary)
        yield temporary, target
    finally:
        temporary.unlink(missing_ok=True)
        unregister(temporary)


def _describe(url: str, status: os.stat_result) -> StoredObject:
    return StoredObject(url, status.st_size, _tag(status))


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"
