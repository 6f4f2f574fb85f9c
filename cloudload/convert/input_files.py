"""An input file and its bytes: decompressed, from any offset on, over connections that break."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from cloudload.errors import StoreError
from cloudload.storage.objects import open_object
from cloudload.storage.redaction import contains_secrets, redact
from cloudload.storage.urls import is_local

_CHUNK_BYTES = 1 << 16
_REOPENINGS = 5


@dataclass(frozen=True)
class SourceFile:
    """An input file: its location, its name below the input it was found in, and how it is to be
    read."""

    url: str
    name: str
    bytes: int | None
    format: str
    compression: str | None


def shown(file: SourceFile) -> str:
    """The file as a message names it."""
    return "stdin" if file.url == "-" else redact(file.url)


class StoredBytes:
    """The stored bytes read of a file so far; what is read twice counts once."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes

    def reach(self, position: int) -> None:
        self.bytes = max(self.bytes, position)


class DamagedError(Exception):
    """A compressed file that cannot be undone any further."""


class _Decoder(Protocol):
    """What zlib, bz2, lzma and zstandard have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _decoder(compression: str) -> _Decoder:
    if compression == "zstd":
        import zstandard

        decoder: _Decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        return decoder
    if compression == "gz":
        import zlib

        return zlib.decompressobj(wbits=31)
    if compression == "bz2":
        import bz2

        return bz2.BZ2Decompressor()
    import lzma

    return lzma.LZMADecompressor()


def read_uncompressed(
    file: SourceFile, offset: int = 0, counter: StoredBytes | None = None
) -> Iterator[bytes]:
    """The file's bytes from `offset` on, decompressed; `counter` follows. Raises `DamagedError`
    where they cannot be."""
    counter = counter or StoredBytes(0)
    if file.compression is None:
        yield from _stored(file, offset, counter)
        return
    skip = offset
    for chunk in _decompressed(_stored(file, 0, counter), file.compression):
        if len(chunk) > skip:
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _decompressed(chunks: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Undo the compression of one or more members, one after the other; zeros between them are
    padding."""
    decoder: _Decoder | None = None
    for stored in chunks:
        left = stored
        while left := left if decoder else left.lstrip(b"\0"):
            decoder = decoder or _decoder(compression)
            try:
                yield decoder.decompress(left)
            except Exception as error:
                raise DamagedError(
                    f"the {compression} data is damaged from here on ({error})"
                ) from error
            left = decoder.unused_data if decoder.eof else b""
            decoder = None if decoder.eof else decoder
    if decoder:
        raise DamagedError(f"the {compression} data ends too early; the file is not whole")


def _stored(file: SourceFile, offset: int, counter: StoredBytes) -> Iterator[bytes]:
    """The bytes that lie in the store, from `offset` on; a connection that breaks is opened again
    where it broke."""
    position, failures = offset, 0
    while True:
        try:
            with _open(file.url) as stream:
                _advance(stream, position, file.url)
                while chunk := stream.read(_CHUNK_BYTES):
                    position, failures = position + len(chunk), 0
                    counter.reach(position)
                    yield chunk
            return
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            failures += 1
            if failures > _REOPENINGS or is_local(file.url):
                what = (
                    f"cannot read {redact(file.url)} after byte {position:,}: {redact(str(error))}"
                )
                raise StoreError(f"{what}. Run again to go on") from (
                    None if contains_secrets(error) else error
                )


def _open(url: str) -> BinaryIO:
    return open(sys.stdin.fileno(), "rb", closefd=False) if url == "-" else open_object(url)


def _advance(stream: BinaryIO, position: int, url: str) -> None:
    if url != "-" and is_local(url):
        stream.seek(position)
        return
    while position > 0 and (skipped := len(stream.read(min(position, 1 << 20)))):
        position -= skipped
