"""Count the traffic of a process's shard cache. Workers report the counts with each block.

    threads that fetch   count_miss(7)  count_download(9_120, …)
    reader               count_open(7)  count_open(8)  take() ─► 1 hit, 1 miss, 9,120 bytes

    threads that fetch   count_retry()  ─► WorkerCounts, which the training process can read

Each opening of a cached shard counts as a hit or a miss. It is a miss if a fetch has found the
shard missing or invalid on disk since the shard was last opened.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np

from cloudload.stats import STAGES, Traffic
from cloudload.system import Ints, SharedMemoryRing


class FirstFetch(NamedTuple):
    """The first shard that a process fetched."""

    url: str
    """The redacted URL of the stored file."""
    bytes: int
    """The size of the stored file."""
    seconds: float
    ended_at: float
    """When the fetch ended, in `time.monotonic` seconds. Processes of a node share this clock."""


class WorkerCounts:
    """The counters of each worker, in shared memory that the training process can always read."""

    def __init__(self, num_workers: int) -> None:
        self._ring = SharedMemoryRing(num_workers, 8 * (3 + len(STAGES)))

    def of(self, worker: int) -> Ints:
        """The retry count of one worker: a writable int64 [1]."""
        return self._all_of(worker)[:1]

    def blocks(self, worker: int) -> Ints:
        """The number of blocks that one worker has finished: a writable int64 [1]."""
        return self._all_of(worker)[1:2]

    def tokens(self, worker: int) -> Ints:
        """The number of tokens in one worker's finished blocks: a writable int64 [1]."""
        return self._all_of(worker)[2:3]

    def times(self, worker: int) -> Ints:
        """Nanoseconds of one worker in each of `stats.STAGES`: a writable int64 [stages]."""
        return self._all_of(worker)[3:]

    def _all_of(self, worker: int) -> Ints:
        return self._ring.array(worker, np.int64, (3 + len(STAGES),))

    def _sums(self) -> list[int]:
        workers = range(self._ring.num_slots)
        sums: Ints = np.sum([self._all_of(worker) for worker in workers], axis=0)
        return [int(each) for each in sums]

    def total(self) -> int:
        """The number of retries of all workers."""
        return self._sums()[0]

    def num_blocks(self) -> int:
        """The number of blocks that all workers have finished."""
        return self._sums()[1]

    def num_tokens(self) -> int:
        """The number of tokens in the blocks that all workers have finished."""
        return self._sums()[2]

    def stage_ns(self) -> list[int]:
        """Nanoseconds in each of `stats.STAGES`, summed over the workers."""
        return self._sums()[3:]


class TrafficCounter:
    """The counts of one reader and the threads that fetch for it. Thread-safe.

    `retries` (int64 [1]) is the array that counts the retries. It may be in shared memory.
    """

    def __init__(self, retries: Ints | None = None) -> None:
        self._retries = np.zeros(1, np.int64) if retries is None else retries
        self._lock, self._missed, self._traffic = threading.Lock(), set[int](), Traffic()
        self._first: FirstFetch | None = None
        self._has_first = False

    def count_miss(self, shard: int) -> None:
        """Record that a fetch found the shard with index `shard` missing or invalid on disk."""
        with self._lock:
            self._missed.add(shard)

    def count_download(self, num_bytes: int, nanoseconds: int) -> None:
        """Add a download of `num_bytes` bytes."""
        with self._lock:
            self._traffic += Traffic(bytes_downloaded=num_bytes, download_ns=nanoseconds)

    def count_unpacking(self, nanoseconds: int) -> None:
        """Add the time that it took to check and decompress a download."""
        with self._lock:
            self._traffic += Traffic(unpack_ns=nanoseconds)

    def count_retry(self) -> None:
        """Count a retry of a failed request."""
        with self._lock:
            self._retries += 1

    def count_open(self, shard: int) -> None:
        """Count the opening of the shard with index `shard` as a hit or a miss."""
        with self._lock:
            self._traffic += Traffic(misses=1) if shard in self._missed else Traffic(hits=1)
            self._missed.discard(shard)

    def count_fetch(self, url: str, size: int, seconds: float) -> None:
        """Record the fetch of a shard of `size` stored bytes, unless one is already recorded."""
        with self._lock:
            if not self._has_first:
                self._has_first = True
                self._first = FirstFetch(url, size, seconds, time.monotonic())

    def take_first_fetch(self) -> FirstFetch | None:
        """Return the first fetch, or None if there was none yet or it was already returned."""
        with self._lock:
            taken, self._first = self._first, None
        return taken

    def take(self) -> Traffic:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            taken, self._traffic = self._traffic, Traffic()
        return taken
