"""Read and decompress input files from any offset, and reconnect if a connection breaks."""

from __future__ import annotations

import io
import logging
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from cloudload.config import choices
from cloudload.data import (
    Location,
    Retry,
    contains_secrets,
    file_content,
    redact,
    shard_entries,
    skip_bytes,
    urls,
)
from cloudload.errors import StoreError
from cloudload.system import activity

logger = logging.getLogger("cloudload.convert")

CHUNK_BYTES = 1 << 16
_MOST_RECONNECTS = 5
_LONG_DOWNLOAD = Retry(deadline_s=3600.0)

_TEXT_FORMATS = frozenset(["text", "lines", "jsonl", "json", "csv", "tsv", "wet"])


Range = tuple[int, int]
"""(start, stop): a part of a file from byte `start` up to, but not including, byte `stop`."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file and how to read it."""

    url: str
    """The location of the file; `-` for stdin."""
    name: str
    """The file's path relative to its input (for a glob, to the folder before the wildcard), or its
    file name if it is the input. Document IDs may be derived from it. If two files would have the
    same name, every name begins with the index of its input. Inputs without files are not
    counted."""
    bytes: int | None
    """The stored size in bytes, or None if unknown."""
    format: str = choices.AUTO
    """One of `config.choices.INPUT_FORMATS`; `auto` until the format is chosen."""
    compression: str | None = None
    """`gz`, `bz2`, `xz`, `zstd` or None. For a shard that is copied, that of the shard."""
    shard: shard_entries.ShardInfo | None = None
    """The file's entry in the index of its dataset, for format `mds`."""
    tag: str = ""
    """The tag in the listing, such as an ETag. Reading is refused if it has changed since then."""
    retry: Retry = field(default=Retry(), compare=False)

    @property
    def location(self) -> Location:
        """The location of a file that is not stdin."""
        return Location(self.url, self.retry)

    @property
    def long_location(self) -> Location:
        """The location with an hour for a request, for a long download."""
        return Location(self.url, _LONG_DOWNLOAD)

    @property
    def display_name(self) -> str:
        """The file's name in messages, without secrets."""
        return "stdin" if self.url == "-" else urls.utf8_name(redact(self.url))


class FilePart(NamedTuple):
    """A file, or a range of a file that can be cut."""

    file: InputFile
    range: Range | None = None

    @property
    def stored_bytes(self) -> int:
        """The size of the part, whose file has a known size."""
        start, stop = self.range or (0, self.file.bytes or 0)
        return stop - start


class StoredByteCounter:
    """Counts the stored bytes read so far. Bytes that are read twice count only once."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes

    def reach(self, position: int) -> None:
        """Record that all bytes before `position` have been read."""
        self.bytes = max(self.bytes, position)

    def begin_member(self, stored: int, content: int) -> None:
        """Called where a member of a compressed file begins; see `file_content.unpack_members`."""


class MemberCounter(StoredByteCounter):
    """Also notes where the members of a compressed file begin, such as the frames of zstd."""

    def __init__(self, bytes: int) -> None:
        super().__init__(bytes)
        self.stored, self.content = array("Q"), array("Q")
        """The numbers of stored and of decompressed bytes before each member."""

    def begin_member(self, stored: int, content: int) -> None:
        self.stored.append(stored)
        self.content.append(content)


def read_decompressed(
    file: InputFile, offset: int = 0, counter: StoredByteCounter | None = None
) -> Iterator[bytes]:
    """Yield the file's decompressed bytes, starting at `offset` of the decompressed file.

    `counter`, if given, counts the stored bytes read. Raises `DamagedError` after the last bytes
    that could be decompressed, and `StoreError` if the file cannot be read.
    """
    counter = counter or StoredByteCounter(0)
    first = offset if file.compression is None else 0
    chunks = _read_stored(file, first, counter)
    if first > 0:
        yield from chunks
        return
    skip = offset
    is_text = file.format in _TEXT_FORMATS
    for chunk in file_content.unpack_file(
        chunks, file.compression, is_text=is_text, begin_member=counter.begin_member
    ):
        if len(chunk) > skip:
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def read_whole(file: InputFile) -> bytes:
    """Return the file's decompressed bytes.

    Raises the errors of `read_decompressed`, and `DamagedError` for more than 1 GiB.
    """
    parts, size = list[bytes](), 0
    for chunk in read_decompressed(file):
        parts.append(chunk)
        size += len(chunk)
        if size > file_content.MOST_RECORD_BYTES:
            raise file_content.DamagedError(
                "the file is larger than 1 GiB, the limit of a document"
            )
    return b"".join(parts)


def _read_stored(file: InputFile, offset: int, counter: StoredByteCounter) -> Iterator[bytes]:
    """Yield the stored bytes, starting at `offset`.

    If a connection breaks, reopens the file and continues. Raises `StoreError` if the file cannot
    be opened, if it changed since it was listed, if 5 reconnects in a row return no byte, and at
    the first failure of a local file or stdin.
    """
    position, failures = offset, 0
    wait = activity.Wait(_report_wait, f"reading {file.display_name}")
    while True:
        try:
            with _open(file, position) as stream:
                while True:
                    with wait:
                        chunk = stream.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    position, failures = position + len(chunk), 0
                    counter.reach(position)
                    yield chunk
            check_read(file, position)
            return
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            failures += 1
            if failures > _MOST_RECONNECTS or urls.is_local(file.url):
                raise StoreError(
                    f"cannot read {redact(file.url)} after byte {position:,}: "
                    f"{redact(str(error))}. Check the file and the connection, and run again to "
                    "resume"
                ) from (None if contains_secrets(error) else error)


def check_read(file: InputFile, bytes: int) -> None:
    """Raise `StoreError` if a file that was read to its end, at `bytes`, changed meanwhile."""
    if file.bytes and bytes != file.bytes:
        raise StoreError(
            f"{file.display_name} has {bytes:,} bytes, but had {file.bytes:,} when it was listed. "
            "Convert a copy that nothing writes to, or start over with --overwrite"
        )
    check_unchanged(file)


def check_unchanged(file: InputFile) -> None:
    """Raise `StoreError` if a local file changed since it was listed.

    The objects of a store need no check after a read, because a response has a single version,
    whose tag is checked when the object is opened.
    """
    if file.url != "-" and urls.is_local(file.url):
        file.location.open(tag=file.tag).close()


def _report_wait(waited_s: float, what: str) -> None:
    logger.warning("waited %.0f s for data: %s", waited_s, what)


def _open(file: InputFile, start: int) -> BinaryIO:
    if file.url != "-":
        return file.location.open(start=start, tag=file.tag)
    stream = open(sys.stdin.fileno(), "rb", closefd=False)
    skip_bytes(stream, start)
    return stream


class ChunkReader(io.RawIOBase):
    """A file that reads from an iterator of chunks, and raises the iterator's errors."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        """Return True, because the file can always be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of `buffer`, and return the number of bytes, or 0 after the last chunk."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
