"""Compression of stored shards.

The raw size in the index limits decompression, even if the data declares a larger size.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable

import numpy as np

from cloudload.data.mds import shard_entries
from cloudload.errors import DatasetError


def compression_extension(compression: str) -> str:
    """The file name extension of a compression, such as `zstd` for `zstd:7`."""
    return compression.partition(":")[0]


def compress(compression: str, data: bytes | memoryview) -> bytes:
    """Compress `data`. The output is deterministic for a given version of the codec.

    `compression` is `zstd`, `gz`, `bz2` or `br`, with an optional level, such as `zstd:7`. Raises
    `ValueError` for any other compression, a level that the codec rejects, or a codec that is not
    installed.
    """
    name, _, level = compression.partition(":")
    codecs: dict[str, Callable[[], bytes]] = {
        "zstd": lambda: _zstd_compress(data, int(level or 3)),
        "gz": lambda: gzip.compress(data, int(level or 9), mtime=0),
        "bz2": lambda: bz2.compress(data, int(level or 9)),
        "br": lambda: _compress_brotli(data, int(level or 11)),
    }
    try:
        return codecs[name]()
    except Exception as error:
        usable = (
            "zstd or zstd:1 to zstd:22, gz or gz:1 to gz:9, bz2 or bz2:1 to bz2:9, br or br:0 to "
            "br:11 (requires the brotli package), or None"
        )
        raise ValueError(f"compression is {compression!r}. Use {usable}") from error


def decompress(compression: str, data: bytes, raw_bytes: int) -> bytes:
    """Decompress a stored shard, and return at most `raw_bytes` + 1 bytes.

    Raises `ValueError` for an unknown compression, and the codec's own error for damaged data and
    for snappy data that is larger than `raw_bytes`. Truncated data may yield fewer bytes without an
    error, so the caller must check the size.
    """
    name = compression.partition(":")[0]
    if name == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return reader.read(raw_bytes + 1)
    if name == "gz":
        return zlib.decompressobj(wbits=31).decompress(data, raw_bytes + 1)
    if name == "bz2":
        return bz2.BZ2Decompressor().decompress(data, raw_bytes + 1)
    if name == "br":
        return _decompress_brotli(data, raw_bytes)
    if name == "snappy":
        room = np.empty(raw_bytes + 1, np.uint8)  # takes no memory before it is written to
        return room[: decompress_into(name, data, room.data)].tobytes()
    raise ValueError(
        f"compression is {compression!r}, not one of {', '.join(shard_entries.COMPRESSIONS)}"
    )


def decompress_into(compression: str, data: bytes, target: memoryview) -> int:
    """Decompress a stored shard to the start of `target`, and return the number of bytes written.

    Stops when `target` is full. Raises the errors of `decompress`.
    """
    if compression.partition(":")[0] == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return int(reader.readinto(target))
    if compression == "snappy":
        import cramjam

        return int(cramjam.snappy.decompress_raw_into(data, target))
    raw = decompress(compression, data, len(target) - 1)
    target[: len(raw)] = raw
    return len(raw)


def check_codec(compression: str) -> None:
    """Raise `DatasetError` if the package that decompresses `compression` is missing or too old."""
    try:
        if compression == shard_entries.PARQUET:
            import pyarrow.parquet  # noqa: F401
        elif compression == "snappy":
            import cramjam  # noqa: F401
        elif compression.partition(":")[0] == "br":
            import brotli

            brotli.Decompressor().process(b"", output_buffer_limit=1)
    except (ImportError, TypeError) as error:
        if compression == shard_entries.PARQUET:
            raise DatasetError(
                "the shards are row groups of Parquet files, which cloudload reads with pyarrow. "
                "Run: pip install pyarrow"
            ) from error
        package = "cramjam" if compression == "snappy" else "'brotli>=1.2'"
        raise DatasetError(
            f"shards are compressed with {compression!r}, but the package that reads them is "
            f"missing or too old. Run: pip install {package}"
        ) from error


def _compress_brotli(data: bytes | memoryview, level: int) -> bytes:
    import brotli

    return bytes(brotli.compress(data, quality=level))


def _decompress_brotli(data: bytes, raw_bytes: int) -> bytes:
    import brotli

    decoder = brotli.Decompressor()
    parts = [decoder.process(data, output_buffer_limit=raw_bytes + 1)]
    # each call returns when the output first exceeds the limit
    left = raw_bytes + 1 - len(parts[0])
    while left > 0 and not decoder.is_finished() and parts[-1]:
        parts.append(decoder.process(b"", output_buffer_limit=left))
        left -= len(parts[-1])
    return b"".join(parts)[: raw_bytes + 1]


def _zstd_compress(data: bytes | memoryview, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(data)
