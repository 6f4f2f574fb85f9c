"""Local copies of input files, for libraries that must seek."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cloudload.data.file_kinds import describe_misnamed
from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import download_object, open_object
from cloudload.data.storage.urls import is_local, local_path
from cloudload.errors import ConvertError
from cloudload.tools.convert.input_files import (
    DamagedError,
    InputFile,
    check_read,
    read_decompressed,
)

LONG_DOWNLOAD = Retry(deadline_s=3600.0)
_HEAD_BYTES = 64


def local_copy(
    file: InputFile, folder: Path, copy_part: Callable[[Path, BinaryIO], None] | None = None
) -> Path:
    """Return a local path to the decompressed file.

    A local, uncompressed file is used in place. Any other file is copied to `folder`. If only a
    part of a file is needed, `copy_part` copies it. Raises `ConvertError` if the file cannot be
    decompressed or copied, or if it is not what its name says, and `StoreError` if it cannot be
    read.
    """
    if file.url != "-" and is_local(file.url) and file.compression is None:
        with open_object(file.url, tag=file.tag) as stored:
            _refuse_misnamed(file, stored)
        return local_path(file.url)
    path = folder / "file"
    try:
        with path.open("w+b") as target:
            if copy_part is not None:
                copy_part(path, target)
            elif file.url == "-" or file.compression:
                target.writelines(read_decompressed(file))
            else:
                check_read(file, download_object(file.url, target, LONG_DOWNLOAD, tag=file.tag))
            target.seek(0)
            _refuse_misnamed(file, target)
    except DamagedError as error:
        raise ConvertError(
            f"{file.display_name}: {error}. Repair the file or leave it out"
        ) from error
    except OSError as error:
        raise ConvertError(
            f"cannot copy {file.display_name} to {folder}: {error}. Free disk space there, or set "
            "TMPDIR to a folder on another disk"
        ) from error
    return path


def _refuse_misnamed(file: InputFile, stored: BinaryIO) -> None:
    """Raise `ConvertError` if a file's first bytes show that it is not what its name says."""
    content = stored.read(_HEAD_BYTES)
    if problem := describe_misnamed(content, None):
        raise ConvertError(f"{file.display_name}: {problem}")
