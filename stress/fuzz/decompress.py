"""Fuzz `decompress`, which may return at most one byte more than the index says."""

from __future__ import annotations

import functools
from collections.abc import Callable

import brotli
import snappy

from cloudload.data.mds.codecs import compress, decompress
from stress.fuzz.target import Choices, Target, expect

_RAW = b"the quick brown fox " * 40
_CODECS = ("zstd", "gz", "bz2", "br", "snappy")


def decompress_seeds() -> list[bytes]:
    """Return valid streams and decompression bombs, each after a byte that chooses the codec."""

    packers: list[Callable[[bytes], bytes]] = [
        functools.partial(compress, name) for name in ("zstd", "gz", "bz2")
    ]
    packers += [brotli.compress, snappy.compress]
    return [
        bytes([number]) + pack(raw)
        for number, pack in enumerate(packers)
        for raw in (_RAW, b"", bytes(1 << 20))
    ]


def run_decompress(data: bytes) -> None:
    """Decompress the input with the codec that its first byte chooses.

    The cache treats an exception of a codec as a damaged file, so only exceptions that suggest a
    bug are findings.
    """
    choices = Choices(data)
    codec = choices.pick(_CODECS)
    try:
        raw = decompress(codec, choices.take(len(data)), len(_RAW))
    except (
        MemoryError,
        RecursionError,
        AssertionError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
    ):
        raise
    except Exception:
        return
    expect(
        len(raw) <= len(_RAW) + 1,
        f"{codec} returned {len(raw)} bytes, but may return at most {len(_RAW) + 1}",
    )


DECOMPRESS = Target(run_decompress, decompress_seeds)
