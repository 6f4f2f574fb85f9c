"""Read files in chunks: decompress them, check what they are, and cut them at line ends.

    chunks of a .jsonl.gz file ─► unpack_file ─► chunks of text ─► cut_at_line_ends ─► whole lines

What cannot be read raises `DamagedError`, after all that could be read before it.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import zstandard

try:
    from zlib_ng import zlib_ng as fast_zlib
except ImportError:  # zlib-ng has no wheel for some platforms
    fast_zlib = zlib  # type: ignore[misc]

from cloudload.data import file_kinds

_MOST_PIECE_BYTES = 1 << 20
"""The most bytes that a decoder returns at once, so that a small file cannot fill the memory."""
_ZSTD_INPUT_BYTES = 1 << 10
"""zstandard's decoder has no such limit, but never turns 4 bytes into more than 128 KiB."""
MOST_RECORD_BYTES = 1 << 30
"""The limit of a record, and of a file that is one document."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOO_LONG = "the line is larger than 1 GiB, the limit of a record"

# each factory returns a decoder with `decompress`, `eof` and `unused_data`
_DECODERS: dict[str, Callable[[], Any]] = {
    "gz": lambda: fast_zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
}


class DamagedError(Exception):
    """A file cannot be read any further, because its data is not what its name says, or damaged."""


def unpack_file(
    stored: Iterator[bytes], compression: str | None, *, is_text: bool
) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, given all of its bytes in chunks.

    `is_text` says whether the file's name promises text. Raises `DamagedError` after the last bytes
    that could be decompressed, or if the file is not what its name says.
    """
    stored = _check_start(stored, partial(file_kinds.describe_misnamed, compression=compression))
    chunks = stored if compression is None else _decompress(stored, compression)
    describe = partial(_describe_start, compression=compression, is_text=is_text)
    yield from _check_start(chunks, describe)


def _check_start(
    chunks: Iterator[bytes], describe: Callable[[bytes], str | None]
) -> Iterator[bytes]:
    """Yield the chunks. Raise `DamagedError` if `describe` finds a problem in the first one."""
    first = next((chunk for chunk in chunks if chunk), b"")
    if problem := describe(first):
        raise DamagedError(problem)
    yield first
    yield from chunks


def _describe_start(content: bytes, compression: str | None, *, is_text: bool) -> str | None:
    """Describe why the decompressed bytes of a file are not what its name says, or return None."""
    if compression and file_kinds.starts_compressed(content):
        return (
            f"the data is still compressed after the {compression} data was unpacked, because it "
            "was compressed twice. Unpack the file once"
        )
    return file_kinds.describe_utf_16(content) if is_text else None


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


def cut_at_line_ends(
    chunks: Iterator[bytes], block_bytes: int
) -> Iterator[tuple[bytes, str | None, int]]:
    """Yield (whole lines, why what follows them is not read or None, size in bytes) of each block.

    A line above the limit of a record ends its block. The block's size includes this line, and its
    data does not. A line that is cut off by damage is dropped.
    """
    parts: list[bytes] = []
    filled = dropped = 0
    open_bytes = 0  # size of the last line so far, whose end was not found yet
    damage = None
    try:
        for chunk in chunks:
            start = chunk.find(b"\n") + 1
            open_bytes += start or len(chunk)
            if open_bytes > MOST_RECORD_BYTES:
                if not dropped:
                    parts, dropped = _drop_last_line(parts)
                dropped += start or len(chunk)
                if not start:
                    continue
                data = b"".join(parts)
                yield data, _TOO_LONG, len(data) + dropped
                parts, filled, dropped = [], 0, 0
            else:
                start = 0
            # a block ends at the first line end after `block_bytes`
            while (cut := chunk.find(b"\n", start + max(0, block_bytes - 1 - filled)) + 1) > 0:
                data = b"".join([*parts, chunk[start:cut]])
                yield data, None, len(data)
                start, parts, filled = cut, [], 0
            parts.append(chunk[start:])
            filled += len(chunk) - start
            if (last := chunk.rfind(b"\n") + 1) > 0:
                open_bytes = len(chunk) - last
    except DamagedError as error:
        damage = str(error)
        if not dropped:
            parts, _ = _drop_last_line(parts)
    pending = b"".join(parts)
    if dropped:
        yield pending, _TOO_LONG, len(pending) + dropped
        pending = b""
    if pending or damage:
        yield pending, damage, len(pending)


def _drop_last_line(parts: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return (the whole lines of consecutive bytes, the size of the unfinished line after them)."""
    pending = b"".join(parts)
    whole = pending[: pending.rfind(b"\n") + 1]
    return [whole], len(pending) - len(whole)
