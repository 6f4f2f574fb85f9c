"""Chunks of bytes as a file, for libraries that read files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any


class ChunkReader(io.RawIOBase):
    """A file that reads from an iterator of chunks. Errors of the iterator reach the reader."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        """Whether the file can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of `buffer`, and return its size in bytes; 0 after the last chunk."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
