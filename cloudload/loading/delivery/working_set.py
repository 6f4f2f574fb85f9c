"""The working set of a node: the peak number of shard bytes that it uses at a time.

The working set is estimated as if all lanes advance in step. The loader refuses a cache limit below
this estimate, because the cache could thrash. With token lengths, it also warns if the limit is
below the working set later in the run, when the lanes have drifted apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.data.cache.folder import cached_bytes
from cloudload.data.cache.usage import add_downloads, sum_in_use
from cloudload.data.mds.dataset import Corpus
from cloudload.errors import CacheError
from cloudload.loading.delivery.world import World
from cloudload.loading.workers.plan import Plan
from cloudload.order.seekable import SeekableOrder
from cloudload.rows.packing.tables import CURSOR_ORDINAL
from cloudload.run.components import Component
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.lengths.working_set import measure_run
from cloudload.system.arrays import NEVER, Ints

_POSITIONS_AT_ONCE = 1 << 20
_MOST_MEASURED, _MOST_EPOCHS = 1 << 24, 4


def check_cache_limit(plan: Plan, world: World, orders: Sequence[Ints | SeekableOrder]) -> None:
    """Raise a `CacheError` that names the minimum if `cache_limit` is below the working set.

    `orders` has the order of one epoch for each component; see `open_current_orders`.
    """
    limit_bytes = plan.delivery.cache_limit_bytes()
    if limit_bytes is None:
        return
    needed = measure_working_set(
        plan.recipe.corpus,
        plan.recipe.components,
        orders,
        own_lanes=plan.machine_lanes(),
        downloads_at_once=count_downloads(plan, world),
    )
    if limit_bytes < needed:
        advice = _lower_minimum(limit_bytes, int(cached_bytes(plan.recipe.corpus).max()))
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
    corpus: Corpus,
    components: Sequence[Component],
    orders: Sequence[Ints | SeekableOrder],
    *,
    own_lanes: Ints,
    downloads_at_once: int,
) -> int:
    """Estimate the peak number of shard bytes that this node uses at a time, including downloads.

    The estimate is at most the size of all shards, because no shard is both in use and being
    downloaded. It assumes that the lanes of the node, `own_lanes` (int64 [lanes]), advance through
    their canonical nodes in step. A shard is then in use from the first to the last step at which
    the component's order reads one of its documents.
    `orders` has the order of one epoch for each component. Components with `repeat` or `choose` are
    not counted, because they read a shard again later. Shards that are mapped in place count as 0
    bytes.
    """
    sizes = cached_bytes(corpus)
    needed = sum(
        _peak_bytes(corpus, component, order, sizes, own_lanes)
        for component, order in zip(components, orders, strict=True)
        if component.sampling is None
    )
    return add_downloads(needed, sizes, downloads_at_once)


def open_current_orders(plan: Plan, world: World) -> list[Ints | SeekableOrder]:
    """Build the orders of the epochs that this rank's lanes are in, before the workers need them.

    Builds at most the orders of the last two epochs of each component, and returns the latest of
    each. Raises `CacheError` if an order cannot be written.
    """
    current: list[Ints | SeekableOrder] = []
    for component, cursors in zip(plan.recipe.components, plan.position.cursors, strict=True):
        orders, lanes = component.orders(plan.cache_root), component.lanes
        last = (lanes.epochs or NEVER) - 1
        own = np.array(world.lanes(plan.num_lanes) if plan.is_even else range(plan.num_lanes))
        epochs, _ = lanes.epoch_positions(own, cursors[own, CURSOR_ORDINAL])
        opened = [orders(min(last, epoch)) for epoch in np.unique(epochs)[-2:].tolist()]
        current.append(opened[-1])
    return current


def count_downloads(plan: Plan, world: World) -> int:
    """Return the maximum number of shards that the workers of this node download at a time."""
    return plan.num_workers * world.ranks_per_node * plan.delivery.download_threads


def explain_later_working_set(plan: Plan, lengths: RunLengths, world: World) -> str | None:
    """Return a warning if `cache_limit` is below the working set later in the run, otherwise None.

    Also returns None if the answer would take more than a few seconds, or if the run is in its
    tail. Raises `CacheError` if an order cannot be built.
    """
    limit = plan.delivery.cache_limit_bytes()
    if limit is None or plan.position.tail is not None:
        return None
    lanes, last_epoch = plan.machine_lanes(), _find_last_epoch(plan)
    if last_epoch is None:
        return None
    found = measure_run(lengths, plan.position, lanes, last_epoch)
    sizes = cached_bytes(plan.recipe.corpus)
    needed = add_downloads(found.bytes, sizes, count_downloads(plan, world))
    if limit >= needed:
        return None
    place = "" if found.row is None else f" around row {found.row:,}"
    return (
        f"cache_limit {limit:,} is below the {needed:,} bytes of shards that this node will use at "
        f"once{place}, because lanes with short documents read ahead (according to the token "
        f"lengths of epochs up to {found.last_epoch}). Some shards will be downloaded again. If "
        f"the disk has room, raise cache_limit to {needed:,}. In a new run, a smaller num_lanes "
        "lowers the number of bytes, as does a smaller num_canonical_nodes (but use at least the "
        "number of nodes)"
    )


def _find_last_epoch(plan: Plan) -> int | None:
    """The last epoch that can be measured in a few seconds, or None if no epoch can.

    It is at most four epochs after the current epoch.
    """
    last = NEVER
    for component, cursors in zip(plan.recipe.components, plan.position.cursors, strict=True):
        lanes = component.lanes
        heads = cursors[:, CURSOR_ORDINAL]
        epochs, _ = lanes.epoch_positions(np.arange(plan.num_lanes), heads)
        current, documents = int(epochs.min()), max(1, lanes.num_positions)
        share = len(plan.machine_lanes()) / plan.num_lanes
        if documents * share > _MOST_MEASURED:
            return None
        # measuring later epochs takes longer, because their orders must be built, too
        more = min(_MOST_EPOCHS, _MOST_MEASURED // documents)
        last = min(last, current + more, (lanes.epochs or NEVER) - 1)
    return last


def _peak_bytes(
    corpus: Corpus, component: Component, order: Ints | SeekableOrder, sizes: Ints, own_lanes: Ints
) -> int:
    """Return the peak number of shard bytes that this node uses at any step of an epoch."""
    is_own = np.zeros(component.order.num_canonical_nodes, bool)
    is_own[component.lanes.nodes[own_lanes]] = True
    if isinstance(order, SeekableOrder):
        uses = order.uses()
        starts = np.cumsum(component.shard_sizes) - component.shard_sizes
        shards = corpus.shards_of(starts[uses.shards] + component.first_sample)
        shards, first, last = (
            found[is_own[uses.nodes]] for found in (shards, uses.first_rounds, uses.stop_rounds - 1)
        )
    else:
        first_of, last_of = _steps_of_shards(corpus, component, order, is_own)
        shards = np.flatnonzero(last_of >= 0)
        first, last = first_of[shards], last_of[shards]
    _, levels = sum_in_use(first, last, sizes[shards])
    return int(levels.max(initial=0))


def _steps_of_shards(
    corpus: Corpus, component: Component, order: Ints, is_own: Ints
) -> tuple[Ints, Ints]:
    """Find the first and last step at which each shard of the corpus is read: int64 [shards] each.

    Both are -1 for a shard that this node does not read. `is_own` is bool [canonical nodes].
    """
    first, last = (np.full(len(corpus.shard_sizes), -1, np.int64) for _ in range(2))
    for start in range(0, len(order), _POSITIONS_AT_ONCE):
        steps, nodes = np.divmod(
            np.arange(start, min(start + _POSITIONS_AT_ONCE, len(order))), len(is_own)
        )
        own = is_own[nodes]
        samples = (
            order[start : start + _POSITIONS_AT_ONCE][own].astype(np.int64) + component.first_sample
        )
        steps, shards = steps[own], corpus.shards_of(samples)
        # if an index occurs several times, NumPy keeps the last value
        last[shards] = steps
        is_new = first[shards] < 0
        first[shards[is_new][::-1]] = steps[is_new][::-1]
    return first, last
