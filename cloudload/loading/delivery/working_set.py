"""The working set of a node: the peak number of shard bytes that it uses at a time.

The working set is estimated as if all lanes advance in step. The loader refuses a cache limit below
this estimate, because the cache could thrash. With token lengths, it also warns if the limit is
below the working set later in the run, when the lanes have drifted apart:

    documents of a lane ─► tokens before each ─► the rows of the lane that read its shard

Every lane emits rows at the same rate, so lanes with short documents read ahead of other lanes. The
distance grows during a run, so a shard that several lanes share stays in use for more and more
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.config import DeliveryConfig
from cloudload.data import cache_folder
from cloudload.errors import CacheError
from cloudload.order import EpochOrders, RankShare, SeekableOrder
from cloudload.rows import tables
from cloudload.run import (
    Component,
    DocumentSizes,
    LaneSizes,
    Position,
    Recipe,
    RunInputs,
    RunLengths,
)
from cloudload.system import NEVER, Ints

_POSITIONS_AT_ONCE = 1 << 20
_MOST_MEASURED, _MOST_EPOCHS = 1 << 24, 4

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


def check_cache_limit(
    recipe: Recipe,
    delivery: DeliveryConfig,
    share: RankShare,
    orders: Sequence[Ints | SeekableOrder],
) -> None:
    """Raise a `CacheError` that names the minimum if `cache_limit` is below the working set.

    `orders` has the order of one epoch for each component; see `open_current_orders`.
    """
    limit_bytes = delivery.cache_limit_bytes()
    if limit_bytes is None:
        return
    needed = measure_working_set(
        recipe, orders, share.machine_lanes, count_downloads(delivery, share)
    )
    if limit_bytes < needed:
        advice = _lower_minimum(limit_bytes, int(cache_folder.cached_bytes(recipe.corpus).max()))
        raise CacheError(
            f"cache_limit {limit_bytes:,} is below the {needed:,} bytes of shards that this node "
            f"uses at once. Raise it to {needed:,} or more, or {advice}"
        )


def _lower_minimum(limit_bytes: int, largest: int) -> str:
    """Advise how to lower the minimum, which is at least the size of the largest shard."""
    if limit_bytes < largest:
        return (
            "write the data with smaller shards (cloudload convert --shard-bytes), because one "
            f"shard has {largest:,} bytes"
        )
    return (
        "lower this minimum with a smaller num_workers or download_threads. In a new run, a "
        "smaller shuffle_block_size may also lower it, as may a smaller num_canonical_nodes (but "
        "use at least the number of nodes)"
    )


def measure_working_set(
    recipe: Recipe,
    orders: Sequence[Ints | SeekableOrder],
    own_lanes: Ints,
    downloads_at_once: int,
) -> int:
    """Estimate the peak number of shard bytes that this node uses at a time, including downloads.

    The estimate is at most the size of all shards, because no shard is both in use and being
    downloaded. It assumes that the lanes of the node, `own_lanes` (int64 [lanes]), advance through
    their canonical nodes in step. A shard is then in use from the first to the last step at which
    the component's order reads one of its documents.
    `orders` has the order of one epoch for each component. Components with `repeat` or `choose` are
    not counted, because they read a shard again later. Shards that are mapped in place, or have no
    selected document, count as 0 bytes.
    """
    sizes = _used_bytes(recipe)
    needed = sum(
        _peak_bytes(recipe, component, order, sizes, own_lanes)
        for component, order in zip(recipe.components, orders, strict=True)
        if component.sampling is None
    )
    return add_downloads(needed, sizes, downloads_at_once)


def _used_bytes(recipe: Recipe) -> Ints:
    """The bytes that each shard uses in the cache: int64 [shards]; 0 if it is never fetched."""
    sizes: Ints = cache_folder.cached_bytes(recipe.corpus) * (recipe.read_of_shards > 0)
    return sizes


def open_current_orders(
    inputs: RunInputs, share: RankShare, position: Position
) -> list[Ints | SeekableOrder]:
    """Build the orders of the epochs that this rank's lanes are in, before the workers need them.

    Builds at most the orders of the last two epochs of each component, and returns the latest of
    each. Raises `CacheError` if an order cannot be written.
    """
    current = _find_current_orders(inputs, share, position)
    return [[orders(epoch) for epoch in epochs][-1] for orders, epochs in current]


def start_current_orders(inputs: RunInputs, share: RankShare, position: Position) -> bool:
    """Build the orders of `open_current_orders`, the large ones in background processes.

    Returns whether all orders are ready. Workers wait for the others. Raises `CacheError` if an
    order cannot be written.
    """
    is_ready = True
    for orders, epochs in _find_current_orders(inputs, share, position):
        for epoch in epochs:
            if orders.is_ready(epoch):
                orders(epoch)
            else:
                orders.build_in_background(epoch)
                is_ready = False
    return is_ready


def _find_current_orders(
    inputs: RunInputs, share: RankShare, position: Position
) -> Iterator[tuple[EpochOrders, list[int]]]:
    """Yield the orders of each component, and the last two epochs that this rank's lanes are in."""
    # unless a rank has whole lanes, rows of all lanes may be dealt to it
    own = np.flatnonzero((share.owners == share.index) | (not share.has_whole_lanes))
    for component, cursors in zip(inputs.recipe.components, position.cursors, strict=True):
        lanes = component.lanes
        last = (lanes.epochs or NEVER) - 1
        epochs, _ = lanes.epoch_positions(own, cursors[own, tables.CURSOR_ORDINAL])
        latest = [min(last, epoch) for epoch in np.unique(epochs)[-2:].tolist()]
        yield component.orders(inputs.cache_root), latest


def count_downloads(delivery: DeliveryConfig, share: RankShare) -> int:
    """Return the maximum number of shards that the workers of this node download at a time."""
    return share.num_workers * share.world.ranks_per_node * delivery.download_threads


def explain_later_working_set(
    lengths: RunLengths, delivery: DeliveryConfig, share: RankShare, position: Position
) -> str | None:
    """Return a warning if `cache_limit` is below the working set later in the run, otherwise None.

    Also returns None if the answer would take more than a few seconds, or if the run is in its
    tail. Raises `CacheError` if an order cannot be built.
    """
    recipe, limit = lengths.recipe, delivery.cache_limit_bytes()
    if limit is None or position.is_in_tail:
        return None
    lanes = share.machine_lanes
    last_epoch = _find_last_epoch(recipe, position, len(lanes) / recipe.num_lanes)
    if last_epoch is None:
        return None
    found = measure_run(lengths, position, lanes, last_epoch)
    sizes = _used_bytes(recipe)
    needed = add_downloads(found.bytes, sizes, count_downloads(delivery, share))
    if limit >= needed:
        return None
    where = "" if found.row is None else f" around row {found.row:,}"
    return (
        f"cache_limit {limit:,} is below the {needed:,} bytes of shards that this node will use at "
        f"once{where}, because lanes with short documents read ahead (according to the token "
        f"lengths of epochs up to {found.last_epoch}). Some shards will be downloaded again. If "
        f"the disk has room, raise cache_limit to {needed:,}. In a new run, a smaller num_lanes "
        "lowers the number of bytes, as does a smaller num_canonical_nodes (but use at least the "
        "number of nodes)"
    )


def _find_last_epoch(recipe: Recipe, position: Position, share: float) -> int | None:
    """The last epoch that can be measured in a few seconds, or None if no epoch can.

    It is at most four epochs after the current epoch.
    """
    last = NEVER
    for component, cursors in zip(recipe.components, position.cursors, strict=True):
        lanes = component.lanes
        heads = cursors[:, tables.CURSOR_ORDINAL]
        epochs, _ = lanes.epoch_positions(np.arange(recipe.num_lanes), heads)
        current, documents = int(epochs.min()), max(1, lanes.num_positions)
        if documents * share > _MOST_MEASURED:
            return None
        # measuring later epochs takes longer, because their orders must be built, too
        more = min(_MOST_EPOCHS, _MOST_MEASURED // documents)
        last = min(last, current + more, (lanes.epochs or NEVER) - 1)
    return last


def _peak_bytes(
    recipe: Recipe,
    component: Component,
    order: Ints | SeekableOrder,
    sizes: Ints,
    own_lanes: Ints,
) -> int:
    """Return the peak number of shard bytes that this node uses at any step of an epoch."""
    is_own = np.zeros(component.order.num_canonical_nodes, bool)
    is_own[component.lanes.nodes[own_lanes]] = True
    if isinstance(order, SeekableOrder):
        uses = order.uses()
        starts = np.cumsum(component.shard_sizes) - component.shard_sizes
        shards = recipe.corpus.shards_of(starts[uses.shards] + component.first_sample)
        shards, first, last = (
            found[is_own[uses.nodes]] for found in (shards, uses.first_rounds, uses.stop_rounds - 1)
        )
    else:
        first_of, last_of = _steps_of_shards(recipe, component, order, is_own)
        shards = np.flatnonzero(last_of >= 0)
        first, last = first_of[shards], last_of[shards]
    _, levels = sum_in_use(first, last, sizes[shards])
    return int(levels.max(initial=0))


def _steps_of_shards(
    recipe: Recipe, component: Component, order: Ints, is_own: Ints
) -> tuple[Ints, Ints]:
    """Find the first and last step at which each shard of the corpus is read: int64 [shards] each.

    Both are -1 for a shard that this node does not read. `is_own` is bool [canonical nodes].
    """
    corpus, selection = recipe.corpus, recipe.selection
    first, last = (np.full(len(corpus.shard_sizes), -1, np.int64) for _ in range(2))
    for start in range(0, len(order), _POSITIONS_AT_ONCE):
        steps, nodes = np.divmod(
            np.arange(start, min(start + _POSITIONS_AT_ONCE, len(order))), len(is_own)
        )
        own = is_own[nodes]
        samples = (
            order[start : start + _POSITIONS_AT_ONCE][own].astype(np.int64) + component.first_sample
        )
        steps = steps[own]
        if selection is not None:
            is_selected = selection.of(samples)
            steps, samples = steps[is_selected], samples[is_selected]
        shards = corpus.shards_of(samples)
        # if an index occurs several times, NumPy keeps the last value
        last[shards] = steps
        is_new = first[shards] < 0
        first[shards[is_new][::-1]] = steps[is_new][::-1]
    return first, last


def measure_run(
    lengths: RunLengths, position: Position, lanes: Ints, last_epoch: int
) -> RunWorkingSet:
    """Measure the working set of `lanes` (int64) from a position to the end of `last_epoch`.

    This takes 0.1 to 0.2 µs per document, plus the time to build the epochs' orders. Components
    with `repeat` or `choose` are not counted, because they read a shard again later. Rows of
    `best_fit` are assumed full. Raises `CacheError` if an order cannot be built.
    """
    recipe, needed, row = lengths.recipe, 0, None
    sizes = cache_folder.cached_bytes(recipe.corpus)
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
    # rows of best_fit are assumed full, so its units are tokens, too
    row_units = 1 if packing.name == "one_per_row" else packing.seq_len
    # a document whose first tokens are in earlier rows begins before unit 0; with one_per_row, they
    # fill whole rows
    offsets = cursors[:, tables.CURSOR_OFFSET]
    before = -(offsets // packing.seq_len if row_units == 1 else offsets)
    for epochs, found in _measure_lanes(sizes, cursors, lanes, last_epoch):
        units = packing.units_of(found.tokens) if row_units == 1 else found.tokens
        stops = before + np.cumsum(units, axis=0)
        first = np.maximum(0, stops - units) // row_units
        # a document without tokens is still read, with the row that follows it
        last = np.maximum(first, (stops - 1) // row_units)
        is_read = (found.sizes != tables.Size.ABSENT) & (found.sizes != tables.Size.DESELECTED)
        shards = recipe.corpus.shards_of(found.samples[is_read])
        yield np.column_stack([epochs[is_read], shards]), first[is_read], last[is_read]
        before = stops[-1]


def _measure_lanes(
    sizes: LaneSizes, cursors: Ints, lanes: Ints, last_epoch: int
) -> Iterator[tuple[Ints, DocumentSizes]]:
    """Measure the documents of lanes, in chunks of ordinals, to the end of `last_epoch`.

    `cursors` is int64 [lanes, 3]. Yields the epoch of each document, int64 [ordinals, lanes], and
    the sizes of the documents, in this shape.
    """
    # documents after the last epoch must count as holes, so measure a run that ends with it
    division = replace(sizes.component.lanes, epochs=last_epoch + 1)
    sizes = replace(sizes, component=replace(sizes.component, lanes=division))
    heads, is_over = cursors[:, tables.CURSOR_ORDINAL], not len(lanes)
    step = max(2, _DOCUMENTS_AT_ONCE // max(1, len(lanes)))
    while not is_over:
        ordinals = heads + np.arange(step)[:, None]
        all_lanes = np.broadcast_to(lanes, ordinals.shape)
        epochs, _ = division.epoch_positions(all_lanes, ordinals)
        yield epochs, sizes.measure(all_lanes, ordinals)
        # lanes begin at different ordinals, so continue until each has passed the last epoch
        heads, is_over = heads + step, int(epochs[-1].min()) > last_epoch


class _ShardUses:
    """The first and last lane rows that use each shard, by epoch.

    `sizes` (int64 [shards]) are the shards' sizes in bytes.
    """

    def __init__(self, sizes: Ints) -> None:
        self._sizes = sizes
        self._of_epoch: dict[int, tuple[Ints, Ints]] = {}

    def add(self, indices: Ints, first: Ints, last: Ints) -> None:
        """Add documents. `indices` (int64 [documents, 2]) has their epochs and shards.

        `first` and `last` (int64 [documents]) are the documents' first and last lane rows.
        """
        for epoch in np.unique(indices[:, 0]).tolist():
            if epoch not in self._of_epoch:
                shape = len(self._sizes)
                self._of_epoch[epoch] = np.full(shape, 1 << 62), np.full(shape, -1)
            firsts, lasts = self._of_epoch[epoch]
            own = indices[:, 0] == epoch
            np.minimum.at(firsts, indices[own, 1], first[own])
            np.maximum.at(lasts, indices[own, 1], last[own])

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


def join_overlaps(shards: Ints, firsts: Ints, lasts: Ints) -> tuple[Ints, Ints, Ints]:
    """Shorten uses of shards so that no two uses of a shard share a row.

    A use is (shard, first row, last row). All arrays are int64 [uses]. A use whose rows are all
    covered by earlier uses is left out.
    """
    order = np.lexsort([firsts, shards])
    shards, firsts, lasts = shards[order], firsts[order], lasts[order]
    most = int(lasts.max(initial=0)) + 2
    ends = np.maximum.accumulate(shards * most + lasts + 1) - shards * most
    is_same = np.diff(shards, prepend=-1) == 0
    firsts = np.maximum(firsts, np.where(is_same, np.roll(ends, 1), 0))
    is_left = firsts <= lasts
    return shards[is_left], firsts[is_left], lasts[is_left]


def sum_in_use(firsts: Ints, lasts: Ints, amounts: Ints) -> tuple[Ints, Ints]:
    """The rows at which the total of all amounts in use changes, and the new total at each row.

    Each amount, such as a number of bytes, is in use from its first to its last row. All arrays are
    int64 [uses], and the results int64 [rows].
    """
    rows, indices = np.unique(np.concatenate([firsts, lasts + 1]), return_inverse=True)
    changes = np.zeros(len(rows), np.int64)
    np.add.at(changes, indices, np.concatenate([amounts, -amounts]))
    return rows, np.cumsum(changes)


def add_downloads(in_use: int, sizes: Ints, downloads_at_once: int) -> int:
    """Add the bytes of the `downloads_at_once` largest shards to the bytes in use.

    The result is at most the bytes of all shards, because no shard is both in use and being
    downloaded. `sizes` (int64 [shards]) has the bytes of each shard.
    """
    return min(in_use + int(np.sort(sizes)[-downloads_at_once:].sum()), int(sizes.sum()))
