"""Files of arrays in a cache. Each file is written once, and all processes of a user map it.

    magic │ xxh3_128 of all that follows │ bytes of the header │ header: JSON │ array │ array │ …

The header has the file's `key`, facts about the arrays, and their dtypes and shapes. A process maps
a file only if no other user, except root, can have written it, and if its key and content are
correct. Any other file counts as missing, such as a damaged or truncated file, a symbolic link, or
a file in another format.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from cloudload.system import temp_files

MAGIC = b"cloudload arrays 1\n".ljust(24, b"\0")
_DIGEST_BYTES, _SIZE_BYTES, _ALIGNED = 16, 8, 8
_CHUNK_BYTES = 1 << 20
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH

Array = np.ndarray[Any, Any]


class ArrayFile(NamedTuple):
    """A file that `map_arrays` has mapped."""

    facts: dict[str, Any]
    arrays: list[Array]
    """The arrays, mapped and read-only. They stay valid after the file is removed."""
    inode: tuple[int, int]
    """The file's device number and inode number, which identify the file."""


def make_own_folder(folder: Path) -> None:
    """Create a folder in which only this user can create files.

    Keeps an existing folder. Raises `OSError` if the folder cannot be created, or if another user,
    except root, owns it or can write to it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if not _is_own(found):
        raise PermissionError(f"another user owns {folder} or can write to it")


def write_arrays(path: Path, key: str, facts: Mapping[str, Any], arrays: Sequence[Array]) -> None:
    """Write arrays to a file, atomically, unless a valid file with this `key` exists.

    `facts` must have plain JSON types. Raises `OSError` if the file cannot be written.
    """
    shapes = [[array.dtype.str, array.shape] for array in arrays]
    header = json.dumps({"key": key, "facts": facts, "arrays": shapes}).encode()
    header += b" " * (-len(header) % _ALIGNED)
    parts: list[Any] = [len(header).to_bytes(_SIZE_BYTES, "little"), header]
    for array in arrays:
        parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
        parts += [b"\0" * (-array.nbytes % _ALIGNED)]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    with temp_files.partial_file(path) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o644), "wb") as file:
            file.writelines([MAGIC, digest.digest(), *parts])
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # `path` exists, or the file system has no hard links
            os.link(temporary, path)
            return
        if map_arrays(path, key) is None:
            temporary.replace(path)


def map_arrays(path: Path, key: str) -> ArrayFile | None:
    """Map a file that `write_arrays` wrote with this `key`. Returns None if there is none."""
    # O_NONBLOCK, because opening a pipe that has the file's name would block without it
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or not _is_own(found) or not _is_whole(file):
                return None
            # `_is_whole` does not use the map, because its pages would count as our memory
            content = mmap.mmap(file.fileno(), found.st_size, access=mmap.ACCESS_READ)
        start = len(MAGIC) + _DIGEST_BYTES
        end = start + _SIZE_BYTES + int.from_bytes(content[start : start + _SIZE_BYTES], "little")
        header = json.loads(content[start + _SIZE_BYTES : end])
        if header["key"] == key:
            arrays = list(_take_arrays(content, end, header["arrays"]))
            return ArrayFile(header["facts"], arrays, (found.st_dev, found.st_ino))
    return None


def _is_own(found: os.stat_result) -> bool:
    """Whether only this user or root can have written a file or a folder."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & _OF_OTHERS


def _is_whole(file: Any) -> bool:
    """Whether a file has the format of this module, and its content matches its digest."""
    if file.read(len(MAGIC)) != MAGIC:
        return False
    wanted, digest = file.read(_DIGEST_BYTES), xxhash.xxh3_128()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return bool(digest.digest() == wanted)


def _take_arrays(content: Any, start: int, shapes: Sequence[Any]) -> Iterator[Array]:
    for dtype, shape in shapes:
        found: Array = np.frombuffer(content, np.dtype(dtype), math.prod(shape), start)
        yield found.reshape(shape)
        start += found.nbytes + -found.nbytes % _ALIGNED
