"""Compute the working set of a run's lanes from lengths: the peak of shard bytes in use.

    documents of a lane ─► tokens before each ─► the rows of the lane that read its shard

Every lane emits rows at the same rate, so lanes with short documents read ahead of other lanes. The
distance grows during a run, so a shard that several lanes share stays in use for more and more
rows. This module computes for how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cloudload.data.cache.folder import cached_bytes
from cloudload.data.cache.usage import join_overlaps, sum_in_use
from cloudload.rows.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.lengths.sizes import ABSENT, LaneSizes, units_of
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.system.arrays import Ints

_DOCUMENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class RunWorkingSet:
    """The working set of some lanes over the rest of a run."""

    bytes: int
    """The peak of shard bytes in use, without downloads; with several components, the sum of their
    peaks."""
    row: int | None
    """The row of the run at which the peak occurs; None with several components."""
    last_epoch: int
    """The last epoch that was measured."""


def measure_run(
    lengths: RunLengths, position: Position, lanes: Ints, last_epoch: int
) -> RunWorkingSet:
    """Measure the working set of `lanes` (int64) from a position to the end of `last_epoch`.

    This takes 0.1 to 0.2 µs per document, plus the time to build the epochs' orders. Components
    with `repeat` or `choose` are not counted, because they read a shard again later. Rows of
    `best_fit` are assumed full. Raises `CacheError` if an order cannot be built.
    """
    recipe, needed, row = lengths.recipe, 0, None
    sizes = cached_bytes(recipe.corpus)
    for own, cursors in zip(lengths.sizes, position.cursors, strict=True):
        if own.component.sampling is None:
            uses = _ShardUses(sizes)
            for epoch, first, last in _find_uses(recipe, own, cursors[lanes], lanes, last_epoch):
                uses.add(epoch, first, last)
            peak, lane_row = uses.find_peak()
            needed, row = needed + peak, position.table_rows + lane_row * recipe.num_lanes
    return RunWorkingSet(needed, row if len(lengths.sizes) == 1 else None, last_epoch)


def _find_uses(
    recipe: Recipe, sizes: LaneSizes, cursors: Ints, lanes: Ints, last_epoch: int
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the (epoch, shard) of each document, and its first and last row in its lane.

    `cursors` is int64 [lanes, 3]. Yields one int64 [documents, 2] and two int64 [documents]. Rows
    are counted from the cursors.
    """
    packing = recipe.packing
    of_row = packing.seq_len if packing.name != "one_per_row" else 1
    unit_tokens = packing.seq_len if of_row == 1 else 1  # an offset is a whole number of units
    heads, before = cursors[:, CURSOR_ORDINAL].copy(), -(cursors[:, CURSOR_OFFSET] // unit_tokens)
    step = max(2, _DOCUMENTS_AT_ONCE // max(1, len(lanes)))
    component = sizes.component
    division = replace(component.lanes, epochs=last_epoch + 1)
    sizes = replace(sizes, component=replace(component, lanes=division))
    is_over = not len(lanes)
    while not is_over:
        ordinals = heads + np.arange(step)[:, None]
        numbers = np.broadcast_to(lanes, ordinals.shape)
        found = sizes.measure(numbers, ordinals)
        units = units_of(packing, found.sizes) if of_row == 1 else found.sizes
        stops = before + np.cumsum(units, axis=0)
        first = np.maximum(0, stops - units) // of_row
        last = np.maximum(first, (stops - 1) // of_row)
        epochs, _ = division.epoch_positions(numbers, ordinals)
        is_over, is_read = int(epochs[-1].min()) > last_epoch, found.kinds != ABSENT
        shards = recipe.corpus.shards_of(found.samples[is_read])
        yield np.column_stack([epochs[is_read], shards]), first[is_read], last[is_read]
        heads, before = heads + step, stops[-1]


class _ShardUses:
    """The first and last lane rows that use each shard, by epoch.

    `sizes` (int64 [shards]) are the shards' sizes in bytes.
    """

    def __init__(self, sizes: Ints) -> None:
        self._sizes = sizes
        self._of_epoch: dict[int, tuple[Ints, Ints]] = {}

    def add(self, places: Ints, first: Ints, last: Ints) -> None:
        """Add documents. `places` (int64 [documents, 2]) has their epochs and shards.

        `first` and `last` (int64 [documents]) are the documents' first and last lane rows.
        """
        for epoch in np.unique(places[:, 0]).tolist():
            if epoch not in self._of_epoch:
                shape = len(self._sizes)
                self._of_epoch[epoch] = np.full(shape, 1 << 62), np.full(shape, -1)
            firsts, lasts = self._of_epoch[epoch]
            own = places[:, 0] == epoch
            np.minimum.at(firsts, places[own, 1], first[own])
            np.maximum.at(lasts, places[own, 1], last[own])

    def find_peak(self) -> tuple[int, int]:
        """The peak of shard bytes in use, and the lane row at which it occurs."""
        if not self._of_epoch:
            return 0, 0
        firsts, lasts = (
            np.concatenate(each) for each in zip(*self._of_epoch.values(), strict=True)
        )
        shards = np.tile(np.arange(len(self._sizes)), len(self._of_epoch))
        read = np.flatnonzero(lasts >= 0)
        # a shard still in use from the previous epoch counts once
        shards, firsts, lasts = join_overlaps(shards[read], firsts[read], lasts[read])
        rows, in_use = sum_in_use(firsts, lasts, self._sizes[shards])
        return int(in_use.max()), int(rows[in_use.argmax()])
