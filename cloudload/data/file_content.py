"""Read files in chunks: decompress them, check what they are, and cut them at line ends.

    chunks of a .jsonl.gz file ─► unpack_file ─► chunks of text ─► cut_at_line_ends ─► whole lines

What cannot be read raises `DamagedError`, after all that could be read before it.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zstandard

try:
    from zlib_ng import zlib_ng as fast_zlib
except ImportError:  # zlib-ng has no wheel for some platforms
    fast_zlib = zlib  # type: ignore[misc]

from cloudload.data import file_kinds

_MOST_FRAME_BYTES, _MOST_RATIO = 1 << 27, 32
"""The most bytes of a zstd frame that is decompressed at once, and per stored byte."""
_MOST_HEADER_BYTES, _REPEATED_BYTE = 18, 1
MOST_RECORD_BYTES = 1 << 30
"""The limit of a record, and of a file that is one document."""

_LINE_FEED = 10
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOO_LONG = "the line is larger than 1 GiB, the limit of a record"


class _Decoding(NamedTuple):
    """How to decompress a format in pieces, so that a small file cannot fill the memory."""

    new_decoder: Callable[[], Any]
    """Creates a decoder of a member, with `decompress`, `eof` and `unused_data`."""
    limit: tuple[int, ...] = (1 << 20,)
    """The most bytes that `decompress` returns, if it has such a limit."""
    most_input: int = 1 << 18
    """The most bytes that `decompress` takes."""
    read_whole: Callable[[memoryview], tuple[bytes, int] | None] = lambda _: None
    """Decompresses a member at once if it is small enough. Returns also its stored size."""


def _decode_zstd() -> _Decoding:
    context = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # reuses its buffers
    # zstd never turns 4 bytes into more than 128 KiB
    return _Decoding(context.decompressobj, (), 1 << 12, partial(_read_frame, context))


_DECODINGS: dict[str, Callable[[], _Decoding]] = {
    "gz": lambda: _Decoding(partial(fast_zlib.decompressobj, wbits=31)),
    "bz2": lambda: _Decoding(bz2.BZ2Decompressor),
    "xz": lambda: _Decoding(lzma.LZMADecompressor),
    "zstd": _decode_zstd,
}


class DamagedError(Exception):
    """A file cannot be read any further, because its data is not what its name says, or damaged."""


def unpack_file(
    stored: Iterator[bytes],
    compression: str | None,
    *,
    is_text: bool,
    begin_member: Callable[[int, int], object] | None = None,
) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, given all of its bytes in chunks.

    `is_text` says whether the file's name promises text. `begin_member` is as in `unpack_members`.
    Raises `DamagedError` after the last bytes that could be decompressed, or if the file is not
    what its name says.
    """
    stored = _check_start(stored, partial(file_kinds.describe_misnamed, compression=compression))
    chunks = stored if compression is None else unpack_members(stored, compression, begin_member)
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


def unpack_members(
    chunks: Iterator[bytes],
    compression: str,
    begin_member: Callable[[int, int], object] | None = None,
) -> Iterator[bytes]:
    """Yield the decompressed bytes of concatenated members, and skip zero padding between them.

    Calls `begin_member` at the start of each member, with the numbers of stored and of decompressed
    bytes before it. Raises `DamagedError` as `unpack_file` does.
    """
    decoding, decoder = _DECODINGS[compression](), None
    before = content = 0
    for stored in chunks:
        start = 0
        while start < len(stored):
            if decoder is None:
                if not stored[start]:
                    given = stored[start : start + decoding.most_input]
                    start += len(given) - len(given.lstrip(b"\0"))
                    continue
                if begin_member is not None:
                    begin_member(before + start, content)
                if whole := decoding.read_whole(memoryview(stored)[start:]):
                    content += len(whole[0])
                    yield whole[0]
                    start += whole[1]
                    continue
                decoder = decoding.new_decoder()
            stop = min(start + decoding.most_input, len(stored))
            left: memoryview | bytes | None = memoryview(stored)[start:stop]
            while left is not None:
                try:
                    piece = decoder.decompress(left, *decoding.limit)
                except Exception as error:
                    raise DamagedError(
                        f"the {compression} data is damaged from this point on ({error})"
                    ) from error
                content += len(piece)
                yield piece
                left = _data_left(decoder)
            start = stop
            if decoder.eof:
                start, decoder = stop - len(decoder.unused_data), None
        before += len(stored)
    if decoder:
        raise DamagedError(f"the {compression} data ends too early, so the file is incomplete")


def _read_frame(context: zstandard.ZstdDecompressor, data: memoryview) -> tuple[bytes, int] | None:
    """Decompress the zstd frame at the start of `data` at once, which is faster than in pieces.

    Returns (its content, its size), or None if it is damaged, large, of unknown size, or cut off.
    """
    try:
        header = zstandard.get_frame_parameters(data[:_MOST_HEADER_BYTES])
        if header.content_size > min(_MOST_FRAME_BYTES, _MOST_RATIO * len(data)):
            return None
        end, is_last = zstandard.frame_header_size(data[:_MOST_HEADER_BYTES]), False
        while not is_last:
            block = int.from_bytes(data[end : end + 3], "little")
            is_last, kind = bool(block & 1), block >> 1 & 3
            end += 3 + (1 if kind == _REPEATED_BYTE else block >> 3)
            if end > len(data):
                return None
        end += 4 if header.has_checksum else 0
        return context.decompress(data[:end]), end
    except zstandard.ZstdError:
        return None


def _data_left(decoder: Any) -> bytes | None:
    """Return the data to pass to a decoder that was stopped by its limit, or None if it was not."""
    if decoder.eof:
        return None
    if hasattr(decoder, "needs_input"):
        return None if decoder.needs_input else b""
    return decoder.unconsumed_tail or None


def count_line_ends(data: bytes) -> int:
    """Count the line feeds, several times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _LINE_FEED))


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
