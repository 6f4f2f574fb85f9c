"""Read and decompress input files from any offset, and reconnect if a connection breaks."""

from __future__ import annotations

import bz2
import logging
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import zstandard

try:
    from zlib_ng import zlib_ng as fast_zlib
except ImportError:  # zlib-ng has no wheel for some platforms
    fast_zlib = zlib  # type: ignore[misc]

from cloudload.errors import StoreError
from cloudload.mds.index import ShardInfo
from cloudload.storage.clients import skip_bytes
from cloudload.storage.objects import open_object
from cloudload.storage.redaction import contains_secrets, redact
from cloudload.storage.urls import is_local
from cloudload.system.activity import Wait

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
_MOST_RECONNECTS = 5

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
    format: str
    """One of `config.choices.INPUT_FORMATS`, except `auto`."""
    compression: str | None
    """`gz`, `bz2`, `xz`, `zstd` or None."""
    shard: ShardInfo | None = None
    """The file's entry in the index of its dataset, for format `mds`."""
    tag: str = ""
    """The tag in the listing, such as an ETag. Reading is refused if it has changed since then."""

    @property
    def display_name(self) -> str:
        """The file's name in messages, without secrets."""
        return "stdin" if self.url == "-" else redact(self.url)


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
    """A compressed file cannot be decompressed any further."""


def read_decompressed(
    file: InputFile, offset: int = 0, counter: StoredByteCounter | None = None
) -> Iterator[bytes]:
    """Yield the file's decompressed bytes, starting at `offset` of the decompressed file.

    `counter`, if given, counts the stored bytes read. Raises `DamagedError` after the last bytes
    that could be decompressed, and `StoreError` if the file cannot be read.
    """
    counter = counter or StoredByteCounter(0)
    if file.compression is None:
        yield from _read_stored(file, offset, counter)
        return
    skip = offset
    for chunk in _decompress(_read_stored(file, 0, counter), file.compression):
        if len(chunk) > skip:
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _decompress(chunks: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of concatenated members, and skip zero padding between them."""
    decoder: Any = None
    for stored in chunks:
        left = stored
        while left := left if decoder else left.lstrip(b"\0"):
            decoder = decoder or _DECODERS[compression]()
            try:
                yield decoder.decompress(left)
            except Exception as error:
                raise DamagedError(
                    f"the {compression} data is damaged from this point on ({error})"
                ) from error
            left = decoder.unused_data if decoder.eof else b""
            decoder = None if decoder.eof else decoder
    if decoder:
        raise DamagedError(f"the {compression} data ends too early, so the file is incomplete")


def _read_stored(file: InputFile, offset: int, counter: StoredByteCounter) -> Iterator[bytes]:
    """Yield the stored bytes, starting at `offset`.

    If a connection breaks, reopens the file and continues. Raises `StoreError` if the file cannot
    be opened, if 5 reconnects in a row return no byte, and at the first failure of a local file or
    stdin.
    """
    position, failures = offset, 0
    wait = Wait(_report_wait, f"reading {file.display_name}")
    while True:
        try:
            with _open(file, position) as stream:
                while True:
                    with wait:
                        chunk = stream.read(_CHUNK_BYTES)
                    if not chunk:
                        break
                    position, failures = position + len(chunk), 0
                    counter.reach(position)
                    yield chunk
            return
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            failures += 1
            if failures > _MOST_RECONNECTS or is_local(file.url):
                raise StoreError(
                    f"cannot read {redact(file.url)} after byte {position:,}: "
                    f"{redact(str(error))}. Check the file and the connection, and run again to "
                    "resume"
                ) from (None if contains_secrets(error) else error)


def _report_wait(waited_s: float, what: str) -> None:
    logger.warning("waited %.0f s for data: %s", waited_s, what)


def _open(file: InputFile, start: int) -> BinaryIO:
    if file.url != "-":
        return open_object(file.url, start=start, tag=file.tag)
    stream = open(sys.stdin.fileno(), "rb", closefd=False)
    skip_bytes(stream, start)
    return stream
