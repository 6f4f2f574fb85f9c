"""Wrap chunks of bytes in a file object, for libraries that read files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any


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
