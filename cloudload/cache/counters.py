"""What a shard cache did for its process: counted as it happens, and sent along with each block.

    threads that fetch   count_miss(7)  count_bytes(9_120)
    reader               count_open(7)  count_open(8)  take() ─► 1 hit, 1 miss, 9,120 bytes

A shard counts each time it is opened: as a miss if it was not on disk at some time since it was
last open, else as a hit.
"""

from __future__ import annotations

import threading

from cloudload.stats import Traffic


class TrafficCounter:
    """Counts for one reader and the threads that fetch for it."""

    def __init__(self) -> None:
        self._lock, self._missed, self._traffic = threading.Lock(), set[int](), Traffic()

    def count_miss(self, shard: int) -> None:
        """A shard is needed, and not on disk."""
        with self._lock:
            self._missed.add(shard)

    def count_bytes(self, number: int) -> None:
        """`number` bytes were downloaded."""
        with self._lock:
            self._traffic += Traffic(bytes_downloaded=number)

    def count_open(self, shard: int) -> None:
        """A shard that is on disk by now is opened."""
        with self._lock:
            self._traffic += Traffic(misses=1) if shard in self._missed else Traffic(hits=1)
            self._missed.discard(shard)

    def take(self) -> Traffic:
        """The counts since the last call."""
        with self._lock:
            taken, self._traffic = self._traffic, Traffic()
        return taken
