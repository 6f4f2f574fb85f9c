"""The backend for files on this machine."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudload.errors import FailureKind
from cloudload.storage.base import ObjectStream, Retry, StoredObject
from cloudload.storage.urls import local_path
from cloudload.storage.versions import version_of_file


class LocalStore:
    """The backend for paths and `file://` URLs."""

    def open(self, url: str, retry: Retry) -> ObjectStream:
        path = local_path(url)
        # opening a pipe blocks until a writer opens it, and a device may never end
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(f"{path} is a pipe or a device, not a regular file. Use a regular file")
        file = io.FileIO(path)
        return ObjectStream(file, version_of_file(file.fileno()))

    def upload(self, path: Path, url: str, retry: Retry) -> None:
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

    def peek(self, url: str, retry: Retry) -> Iterator[str]:
        with os.scandir(local_path(url)) as entries:
            for entry in entries:
                yield f"{entry.name}/" if entry.is_dir() else entry.name

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER

    def describe_endpoint(self, url: str) -> str:
        return ""
