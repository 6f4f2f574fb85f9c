"""Read and decompress input files from any offset, and reconnect if a connection breaks."""

from __future__ import annotations

import bz2
import io
import logging
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import zstandard

try:
    from zlib_ng import zlib_ng as fast_zlib
except ImportError:  # zlib-ng has no wheel for some platforms
    fast_zlib = zlib  # type: ignore[misc]

from cloudload.config import choices
from cloudload.data import (
    Location,
    Retry,
    contains_secrets,
    file_kinds,
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

_MOST_PIECE_BYTES = 1 << 20
"""The most bytes that a decoder returns at once, so that a small file cannot fill the memory."""
_ZSTD_INPUT_BYTES = 1 << 10
"""zstandard's decoder has no such limit, but never turns 4 bytes into more than 128 KiB."""
MOST_RECORD_BYTES = 1 << 30
"""The limit of a record, and of a file that is one document."""

_TEXT_FORMATS = frozenset(["text", "lines", "jsonl", "json", "csv", "tsv", "wet"])

# each factory returns a decoder with `decompress`, `eof` and `unused_data`
_DECODERS: dict[str, Callable[[], Any]] = {
    "gz": lambda: fast_zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
}


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

    @property
    def location(self) -> Location:
        """The location of a file that is not stdin."""
        return Location(self.url)

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


class StoredByteCounter:
    """Counts the stored bytes read so far. Bytes that are read twice count only once."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes

    def reach(self, position: int) -> None:
        """Record that all bytes before `position` have been read."""
        self.bytes = max(self.bytes, position)


class DamagedError(Exception):
    """A file cannot be read any further, because its data is not what its name says, or damaged."""


def read_decompressed(
    file: InputFile, offset: int = 0, counter: StoredByteCounter | None = None
) -> Iterator[bytes]:
    """Yield the file's decompressed bytes, starting at `offset` of the decompressed file.

    `counter`, if given, counts the stored bytes read. Raises `DamagedError` after the last bytes
    that could be decompressed, and `StoreError` if the file cannot be read.
    """
    counter = counter or StoredByteCounter(0)
    first = offset if file.compression is None else 0
    stored = _read_stored(file, first, counter)
    if first == 0:
        stored = _check_start(
            stored, partial(file_kinds.describe_misnamed, compression=file.compression)
        )
    if file.compression is None:
        yield from _check_start(stored, partial(_describe_start, file)) if first == 0 else stored
        return
    skip = offset
    chunks = _decompress(stored, file.compression)
    for chunk in _check_start(chunks, partial(_describe_start, file)):
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
        if size > MOST_RECORD_BYTES:
            raise DamagedError("the file is larger than 1 GiB, the limit of a document")
    return b"".join(parts)


def _check_start(
    chunks: Iterator[bytes], describe: Callable[[bytes], str | None]
) -> Iterator[bytes]:
    """Yield the chunks. Raise `DamagedError` if `describe` finds a problem in the first one."""
    first = next((chunk for chunk in chunks if chunk), b"")
    if problem := describe(first):
        raise DamagedError(problem)
    yield first
    yield from chunks


def _describe_start(file: InputFile, content: bytes) -> str | None:
    """Describe why the decompressed bytes of a file are not what its name says, or return None."""
    if file.compression and file_kinds.starts_compressed(content):
        return (
            f"the data is still compressed after the {file.compression} data was unpacked, because "
            "it was compressed twice. Unpack the file once"
        )
    return file_kinds.describe_utf_16(content) if file.format in _TEXT_FORMATS else None


def _decompress(chunks: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of concatenated members, and skip zero padding between them."""
    decoder: Any = None
    unpack = _unpack_zstd if compression == "zstd" else _unpack
    for stored in chunks:
        left = stored
        while left := left if decoder else left.lstrip(b"\0"):
            decoder = decoder or _DECODERS[compression]()
            try:
                left = yield from unpack(decoder, left)
            except Exception as error:
                raise DamagedError(
                    f"the {compression} data is damaged from this point on ({error})"
                ) from error
            decoder = None if decoder.eof else decoder
    if decoder:
        raise DamagedError(f"the {compression} data ends too early, so the file is incomplete")


def _unpack(decoder: Any, data: bytes) -> Generator[bytes, None, bytes]:
    """Yield the decompressed bytes in pieces, and return the data after the end of the member."""
    yield decoder.decompress(data, _MOST_PIECE_BYTES)
    while not decoder.eof and (left := _data_left(decoder)) is not None:
        yield decoder.decompress(left, _MOST_PIECE_BYTES)
    return bytes(decoder.unused_data)


def _unpack_zstd(decoder: Any, data: bytes) -> Generator[bytes, None, bytes]:
    for start in range(0, len(data), _ZSTD_INPUT_BYTES):
        yield decoder.decompress(data[start : start + _ZSTD_INPUT_BYTES])
        if decoder.eof:
            return bytes(decoder.unused_data) + data[start + _ZSTD_INPUT_BYTES :]
    return b""


def _data_left(decoder: Any) -> bytes | None:
    """Return the data to pass to a decoder that was stopped by its limit, or None at its end."""
    if hasattr(decoder, "needs_input"):
        return None if decoder.needs_input else b""
    return decoder.unconsumed_tail or None


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
