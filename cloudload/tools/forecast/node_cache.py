"""The shard cache of a node during a run: bytes in use, bytes kept, and downloads.

uses ─► bytes in use at each row; their peak is the working set
     └─► a cache of `limit` bytes that evicts the least recently used shard ─► downloads
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from cloudload.data.cache.usage import join_overlaps, sum_in_use
from cloudload.system.arrays import Ints
from cloudload.tools.forecast.shard_uses import ShardUses

_MOST_POINTS = 240


@dataclass(frozen=True)
class ShardSizes:
    """The sizes of the shards of a corpus: int64 [shards] each."""

    cached: Ints
    """Bytes in the cache; 0 if the shard is mapped in place."""
    stored: Ints
    """Bytes to download; 0 if the shard is mapped in place."""


@dataclass(frozen=True)
class Timeline:
    """The bytes of shards in use over a run: int64 [points] each."""

    rows: Ints
    """The first row of each part of the run. The parts have about the same number of rows."""
    bytes: Ints
    """Peak bytes in use during each part."""
    shards: Ints
    """Peak number of shards in use during each part."""


def find_levels(uses: ShardUses, sizes: Ints, num_rows: int) -> Timeline:
    """Return the peak bytes and shards in use on a node, in each of up to 240 parts of a run."""
    parts = min(_MOST_POINTS, max(1, num_rows))
    edges = np.arange(parts + 1) * num_rows // parts
    in_use = [_most_of_parts(uses, amounts, edges) for amounts in (sizes, np.ones_like(sizes))]
    return Timeline(edges[:-1], *in_use)


def _most_of_parts(uses: ShardUses, amounts: Ints, edges: Ints) -> Ints:
    rows, levels = _levels(uses, amounts)
    firsts = np.maximum(0, np.searchsorted(rows, edges[:-1], side="right") - 1)
    stops = np.maximum(firsts + 1, np.searchsorted(rows, edges[1:]))
    pairs = zip(firsts.tolist(), stops.tolist(), strict=True)
    return np.array([levels[first:stop].max(initial=0) for first, stop in pairs], np.int64)


def _levels(uses: ShardUses, amounts: Ints) -> tuple[Ints, Ints]:
    """Return the rows at which the total amount in use changes, and the totals from there on."""
    shards, firsts, lasts = join_overlaps(uses.shards, uses.first_rows, uses.last_rows)
    return sum_in_use(firsts, lasts, amounts[shards])


def measure_peak(uses: ShardUses, sizes: Ints, rows_ahead: int = 0) -> int:
    """Return the peak bytes in use if shards are fetched `rows_ahead` rows before their use."""
    early = np.maximum(0, uses.first_rows - rows_ahead)
    _, levels = _levels(replace(uses, first_rows=early), sizes)
    return int(levels.max(initial=0))


@dataclass(frozen=True)
class Downloads:
    """The downloads of a node."""

    times: Ints
    """Number of downloads of each shard: int64 [shards]."""
    by_epoch: Ints
    """Bytes downloaded for each epoch: int64 [epochs]."""

    def extend(self, factor: float) -> Downloads:
        """Return the downloads of a run that is `factor` times as long.

        Each later epoch downloads as much as the average epoch of the second half of these.
        `by_epoch` stays as it is.
        """
        later = self.by_epoch[len(self.by_epoch) // 2 :]
        more = (factor - 1) * len(self.by_epoch) * float(later.mean()) if len(later) else 0.0
        total = max(1, int(self.by_epoch.sum()))
        return Downloads(np.rint(self.times * (1 + more / total)).astype(np.int64), self.by_epoch)


def simulate_cache(uses: ShardUses, sizes: ShardSizes, limit: int | None) -> Downloads:
    """Simulate the cache of one node, which evicts the least recently used shard.

    The cache evicts a shard in use only if all shards are in use. `limit` is in bytes; None means
    no limit.
    """
    order = np.argsort(uses.first_rows, kind="stable")
    times, by_epoch = np.zeros_like(sizes.stored), np.zeros(_count_epochs(uses), np.int64)
    last_rows: dict[int, int] = {}
    oldest: list[tuple[int, int]] = []
    used = 0
    columns = (uses.shards, uses.last_rows, uses.epochs)
    for shard, last, epoch in zip(*(each[order].tolist() for each in columns), strict=True):
        if shard not in last_rows and sizes.stored[shard]:
            times[shard] += 1
            by_epoch[epoch] += sizes.stored[shard]
            used += int(sizes.cached[shard])
            while limit is not None and used > limit and oldest:
                row, other = heapq.heappop(oldest)
                if last_rows.get(other) == row:
                    del last_rows[other]
                    used -= int(sizes.cached[other])
        last_rows[shard] = max(last, last_rows.get(shard, 0))
        heapq.heappush(oldest, (last_rows[shard], shard))
    return Downloads(times, by_epoch)


def fetch_again(uses: ShardUses, sizes: ShardSizes) -> Downloads:
    """Return the downloads if every epoch downloads all of its shards again."""
    times = np.bincount(uses.shards, minlength=len(sizes.stored)) * (sizes.stored > 0)
    by_epoch = np.bincount(uses.epochs, sizes.stored[uses.shards], _count_epochs(uses))
    return Downloads(times, by_epoch.astype(np.int64))


def _count_epochs(uses: ShardUses) -> int:
    return int(uses.epochs.max(initial=-1)) + 1
