"""Count the traffic of a process's shard cache. Workers report the counts with each block.

    threads that fetch   count_miss(7)  count_bytes(9_120)
    reader               count_open(7)  count_open(8)  take() ─► 1 hit, 1 miss, 9,120 bytes

Each opening of a cached shard counts once. It is a miss if a fetch has found the shard missing or
invalid on disk since it was last opened, otherwise a hit.
"""

from __future__ import annotations

import threading

from cloudload.stats import Traffic


class TrafficCounter:
    """The counts of one reader and the threads that fetch for it. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._missed, self._traffic = threading.Lock(), set[int](), Traffic()

    def count_miss(self, shard: int) -> None:
        """Record that a fetch found the shard with index `shard` missing or invalid on disk."""
        with self._lock:
            self._missed.add(shard)

    def count_bytes(self, number: int) -> None:
        """Add `number` downloaded bytes."""
        with self._lock:
            self._traffic += Traffic(bytes_downloaded=number)

    def count_open(self, shard: int) -> None:
        """Count the opening of the shard with index `shard` as a hit or a miss."""
        with self._lock:
            self._traffic += Traffic(misses=1) if shard in self._missed else Traffic(hits=1)
            self._missed.discard(shard)

    def take(self) -> Traffic:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            taken, self._traffic = self._traffic, Traffic()
        return taken
