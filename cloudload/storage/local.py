"""The backend for folders on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cloudload.storage.base import Retry, StoredObject, Trouble
from cloudload.storage.urls import local_path


class LocalStore:
    """Files of this machine."""

    def open(self, url: str, retry: Retry) -> BinaryIO:
        path = local_path(url)
        # opening a pipe waits for its other end, and a device may never end
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(
                f"{path} is a pipe or a device, and not a regular file. Put the file itself there"
            )
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
        return (
            Trouble.MISSING_OBJECT
            if isinstance(error, FileNotFoundError | NotADirectoryError)
            else Trouble.OTHER
        )
