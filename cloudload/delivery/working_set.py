"""How many bytes of shards a node has in use at a time, so that a cache that is too small is
refused before it thrashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.arrays import Ints
from cloudload.delivery.world import World
from cloudload.errors import CacheError
from cloudload.mds.dataset import Corpus, is_in_place
from cloudload.order.seekable import SeekableOrder
from cloudload.run.components import Component

_POSITIONS_AT_ONCE = 1 << 20


def check_cache_limit(
    limit_bytes: int | None,
    corpus: Corpus,
    components: Sequence[Component],
    orders: Sequence[Ints | SeekableOrder],
    *,
    world: World,
    downloads_at_once: int,
) -> None:
    """Raises `CacheError`, with the number that would do, where `limit_bytes` is below the working
    set of this node.

    The lanes of a node go through their canonical nodes in step: a shard is in use from the first
    to the last step at which one of its documents stands in the order of the component (sample ids
    of an epoch). The shards that are being fetched ahead come on top.
    """
    if limit_bytes is None:
        return
    sizes = _cached_bytes(corpus)
    needed = int(downloads_at_once * sizes.max(initial=0))
    for component, order in zip(components, orders, strict=True):
        # where samples are repeated, their shards come again and again, and are not in use in
        # between
        if component.sampling is None:
            needed += _peak_bytes(corpus, component, order, sizes, world)
    if limit_bytes < needed:
        raise CacheError(
            f"cache_limit {limit_bytes:,} is below the {needed:,} bytes of shards that this node "
            "uses at a time. "
            f"Raise it to {needed:,} or more, or make shuffle_block_size or "
            "num_canonical_nodes smaller"
        )


def _cached_bytes(corpus: Corpus) -> Ints:
    """The bytes that each shard takes in the cache: none where it is mapped in place."""
    return np.array(
        [
            0 if is_in_place(dataset, shard) else shard.raw.bytes
            for dataset in corpus.datasets
            for shard in dataset.shards
        ],
        np.int64,
    )


def _peak_bytes(
    corpus: Corpus, component: Component, order: Ints | SeekableOrder, sizes: Ints, world: World
) -> int:
    """The most bytes of shards that are in use at any step of an epoch."""
    num_nodes, num_hosts = (
        component.order.num_canonical_nodes,
        max(1, world.size // world.ranks_per_node),
    )
    is_own = np.ones(num_nodes, bool)
    if num_nodes % num_hosts == 0:
        is_own = component.lanes.hosts_of_nodes(num_hosts) == world.rank // world.ranks_per_node
    if isinstance(order, SeekableOrder):
        uses = order.uses()
        starts = np.cumsum(component.shard_sizes) - component.shard_sizes
        shards = corpus.shards_of(starts[uses.shards] + component.first_sample)
        shards, first, stop = (
            found[is_own[uses.nodes]] for found in (shards, uses.first_rounds, uses.stop_rounds)
        )
    else:
        first_of, last_of = _steps_of_shards(corpus, component, order, is_own)
        shards = np.flatnonzero(last_of >= 0)
        first, stop = first_of[shards], last_of[shards] + 1
    in_use = np.zeros(int(stop.max(initial=0)) + 1, np.int64)
    np.add.at(in_use, first, sizes[shards])
    np.add.at(in_use, stop, -sizes[shards])
    return int(np.cumsum(in_use).max())


def _steps_of_shards(
    corpus: Corpus, component: Component, order: Ints, is_own: Ints
) -> tuple[Ints, Ints]:
    """The first and the last step at which each shard of the corpus is read: int64 [shards]; -1
    where it is not."""
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
        # of several values for one place the last one stays
        last[shards] = steps
        is_new = first[shards] < 0
        first[shards[is_new][::-1]] = steps[is_new][::-1]
    return first, last
