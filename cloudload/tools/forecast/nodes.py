"""The nodes of a run: the cache and the downloads of each.

uses ─► bytes in use at each row; their peak is the working set
     └─► a cache of `limit` bytes that evicts the least recently used shard ─► downloads
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.data import (
    Corpus,
    are_in_place,
    cache_folder,
    join_columns,
)
from cloudload.loading import (
    add_downloads,
    count_downloads,
    join_overlaps,
    measure_working_set,
    sum_in_use,
)
from cloudload.stats import READ
from cloudload.system import Ints
from cloudload.tools.forecast.cases import Cases
from cloudload.tools.forecast.request import Case, ForecastRequest
from cloudload.tools.forecast.result import Figure, NodePlan
from cloudload.tools.forecast.shard_uses import ShardUses

_MOST_EPOCHS_AGAIN = 2  # epochs of read-ahead after the run; only tiny datasets need more


@dataclass(frozen=True)
class ShardSizes:
    """The sizes of the shards of a corpus: int64 [shards] each."""

    cached: Ints
    """Bytes in the cache; 0 if the shard is mapped in place."""
    stored: Ints
    """Bytes to download; 0 if the shard is mapped in place."""


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


def measure_peak(uses: ShardUses, sizes: Ints, rows_ahead: int = 0) -> int:
    """Return the peak bytes in use if shards are fetched `rows_ahead` rows before their use."""
    early = np.maximum(0, uses.first_rows - rows_ahead)
    shards, firsts, lasts = join_overlaps(uses.shards, early, uses.last_rows)
    _, levels = sum_in_use(firsts, lasts, sizes[shards])
    return int(levels.max(initial=0))


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


class NodeForecast:
    """Computes the parts of a `RunPlan` that concern nodes."""

    def __init__(self, asked: ForecastRequest, cases: Cases, found: Sequence[Case]) -> None:
        self._asked, self._cases, self._found = asked, cases, found
        self._share, self._limit = asked.share, asked.limit
        self._sizes = _measure_shards(asked.recipe.corpus)
        self._downloads_at_once = count_downloads(asked.delivery, asked.share)

    def plan_node(self, node: int) -> NodePlan:
        """Forecast the shard cache and the downloads of a node."""
        plans = [self._plan_in_case(case, node) for case in self._found]
        is_listed = all(case.uses.is_listed for case in self._found)
        is_exact = self._cases.is_exact and is_listed
        # regardless of lengths, a whole run on one node reads all documents
        is_whole = all(case.extent.is_whole for case in self._found)
        is_all_read = is_listed and is_whole and self._asked.num_nodes == 1

        def join(figures: Iterable[Figure]) -> Figure:
            found = self._join(list(figures))
            is_sure = (is_exact or is_all_read) and found.low == found.high
            return replace(found, is_exact=is_sure)

        working = [each.working_set_bytes.value for each in plans]
        is_known = is_listed and self._cases.fill.is_exact
        error = self._cases.error if is_known else math.nan
        peak = Figure.exact(working[0]) if is_exact else Figure.predicted(working, error)
        epochs = itertools.zip_longest(*(each.bytes_by_epoch for each in plans), fillvalue=0)
        return NodePlan(
            node=node,
            shards=join(each.shards for each in plans),
            all_bytes=join(each.all_bytes for each in plans),
            working_set_bytes=peak,
            needed_bytes=join(each.needed_bytes for each in plans),
            bytes_downloaded=join(each.bytes_downloaded for each in plans),
            bytes_by_epoch=tuple(round(sum(each) / len(plans)) for each in epochs),
            requests=join(each.requests for each in plans),
        )

    def _join(self, figures: list[Figure]) -> Figure:
        """Combine a figure from all cases. Its error is unknown if `best_fit` is approximated."""
        mean = float(np.mean([each.value for each in figures]))
        if not self._cases.fill.is_exact:
            return Figure.around(mean, math.nan)
        low, high = min(each.low for each in figures), max(each.high for each in figures)
        if len(figures) > 1:
            spread = Figure.predicted([each.value for each in figures])
            low, high = max(0.0, min(low, spread.low)), max(high, spread.high)
        return Figure(mean, low, high)

    def _plan_in_case(self, case: Case, node: int) -> NodePlan:
        """Forecast a node in one case. A figure has its least, expected, and most value."""
        sizes = self._sizes
        needed, ahead = case.of_node(node)
        low, value, high = self._simulate(case, node)
        downloads = value, low, high
        held = [np.unique(each.shards[sizes.stored[each.shards] > 0]) for each in (needed, ahead)]
        total = [int(sizes.cached[each].sum()) for each in held]
        early = self._asked.limit_ahead(case.extent) + self._rows_of_documents_ahead(case)
        working = measure_peak(needed, sizes.cached)
        fetched = measure_peak(ahead, sizes.cached, early)
        most = min(total[1], add_downloads(fetched, sizes.cached, self._downloads_at_once))
        return NodePlan(
            node=node,
            shards=Figure(len(held[0]), len(held[0]), len(held[1])),
            all_bytes=Figure(total[0], total[0], total[1]),
            working_set_bytes=Figure(working, working, working),
            needed_bytes=Figure(min(total[1], fetched), working, most),
            bytes_downloaded=_figure([float(each.times @ sizes.stored) for each in downloads]),
            bytes_by_epoch=tuple(value.by_epoch.tolist()),
            requests=_figure([float(each.times.sum()) for each in downloads]),
        )

    def _simulate(self, case: Case, node: int) -> list[Downloads]:
        """Return the minimum, expected, and maximum downloads of a node."""
        found = self._simulate_beginning(*case.of_node(node))
        if case.extent.played is None:
            return list(found)
        factor = case.extent.rows / case.extent.played.rows
        return [each.extend(factor) for each in found]

    def _simulate_beginning(
        self, needed: ShardUses, ahead: ShardUses
    ) -> tuple[Downloads, Downloads, Downloads]:
        sizes, limit = self._sizes, self._limit
        low = simulate_cache(needed, sizes, None)
        most = int(sizes.cached[np.unique(ahead.shards)].sum())
        if limit is None or limit >= most:
            return low, low, simulate_cache(ahead, sizes, None)
        last_epoch = int(needed.epochs.max(initial=0)) + _MOST_EPOCHS_AGAIN
        again = fetch_again(ahead.take(ahead.epochs <= last_epoch), sizes)
        once = simulate_cache(ahead, sizes, None)
        high = replace(again, times=np.maximum(again.times, once.times))
        return low, simulate_cache(needed, sizes, limit), high

    def _rows_of_documents_ahead(self, case: Case) -> int:
        """Estimate the number of rows that are made from the documents fetched ahead."""
        read = int(case.extent.counts[:, list(READ)].sum())
        rows_of_document = case.extent.rows / max(1, read)
        return round(max(self._asked.documents_ahead) * self._share.num_lanes * rows_of_document)

    def measure_least(self) -> int:
        """Return the cache limit in bytes below which a loader on some node refuses to start."""
        recipe, nodes = self._asked.recipe, self._share.lane_hosts
        orders = [each.orders(self._asked.inputs.cache_root)(0) for each in recipe.components]
        return max(
            measure_working_set(
                recipe, orders, np.flatnonzero(nodes == node), self._downloads_at_once
            )
            for node in range(self._asked.num_nodes)
        )


def _figure(values: Sequence[float]) -> Figure:
    value, low, high = values
    return Figure(value, low, high)


def _measure_shards(corpus: Corpus) -> ShardSizes:
    stored = [each.table.stored_bytes * ~are_in_place(each) for each in corpus.datasets]
    return ShardSizes(cache_folder.cached_bytes(corpus), join_columns(stored))
