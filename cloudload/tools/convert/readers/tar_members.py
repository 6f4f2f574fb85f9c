"""Read the files of a tar archive from front to back, without writing them to disk.

The standard library's `tarfile` stops silently at a header that it cannot read, and after the first
of several concatenated archives. This module raises an error in both cases.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cloudload.data.storage.urls import utf8_name
from cloudload.tools.convert.chunk_reader import ChunkReader
from cloudload.tools.convert.input_files import MOST_RECORD_BYTES, DamagedError

_HEADER_BYTES = 512
_READ_BYTES = 1 << 16


class MoreDataError(DamagedError):
    """The file continues after the end of the archive."""


class Member(NamedTuple):
    """A file or link in an archive."""

    offset: int
    """Offset of the file's first header in the bytes that were read."""
    name: str
    size: int
    """The size of the file in bytes."""
    data: bytes | None
    """The file's bytes, or None for a link, an unwanted file, or a file larger than 1 GiB."""
    is_link: bool


def read_members(chunks: Iterator[bytes], is_wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Yield the files and links of an archive, with data for files whose name `is_wanted`.

    After the last readable file, raises `DamagedError` if the archive is damaged, or
    `MoreDataError` if data follows a complete archive.
    """
    source = _RecentBytes(chunks)
    try:
        tar: Any = tarfile.open(fileobj=source, mode="r|", bufsize=_READ_BYTES)
        while member := tar.next():
            tar.members = []  # otherwise, tarfile would keep all members in memory
            is_link = member.issym() or member.islnk()
            if member.isfile() or is_link:
                is_small = member.size <= MOST_RECORD_BYTES
                is_read = is_small and not is_link and is_wanted(member.name)
                data = tar.extractfile(member).read() if is_read else None
                yield Member(member.offset, utf8_name(member.name), member.size, data, is_link)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DamagedError(f"the tar archive is damaged or incomplete ({error})") from error
    rest = source.since(tar.offset)
    if not rest:
        raise DamagedError("the tar archive has no end marker, so it may be incomplete")
    if rest[:_HEADER_BYTES].strip(b"\0"):
        raise DamagedError("the tar archive is damaged from this point on (invalid header)")
    if rest.strip(b"\0") or any(chunk.strip(b"\0") for chunk in iter(source.read_chunk, b"")):
        raise MoreDataError(
            "the tar archive ends here, but more data follows. If several archives were joined, "
            "convert each one separately"
        )


class _RecentBytes(io.BufferedReader):
    """A file that reads from chunks, and keeps the data of the last two reads for `since`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__(ChunkReader(chunks), _READ_BYTES)
        self._recent, self._end = (b"", b""), 0
        self._reads_past_end = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, or fewer at the end."""
        data = super().read(size)
        self._reads_past_end = 0 if data else self._reads_past_end + 1
        if self._reads_past_end > 2:
            # at the end of the data, tarfile keeps reading if a header declares a larger size
            raise DamagedError("the tar archive is damaged or incomplete (unexpected end of data)")
        self._recent = (self._recent[1], data)
        self._end += len(data)
        return data

    def read_chunk(self) -> bytes:
        """Read up to 64 KiB that `since` does not return; no bytes at the end."""
        return super().read(_READ_BYTES)

    def since(self, offset: int) -> bytes:
        """Return the bytes read from `offset` on, which must be in one of the last two reads."""
        recent = b"".join(self._recent)
        return recent[len(recent) - (self._end - offset) :] if offset < self._end else b""
