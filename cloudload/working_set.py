"""How many bytes of shards a node has in use at a time, so that a cache that is too small is refused before it thrashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.components import Component
from cloudload.dataset import Corpus, is_in_place
from cloudload.errors import CacheError
from cloudload.lanes import Ints, World


def check_cache_limit(
    limit_bytes: int | None,
    corpus: Corpus,
    components: Sequence[Component],
    orders: Sequence[Ints],
    *,
    world: World,
    downloads_at_once: int,
) -> None:
    """Raises `CacheError`, with the number that would do, where `limit_bytes` is below the working set of this node.

    The lanes of a node go through their canonical nodes in step: a shard is in use from the first to the last step at which one
    of its documents stands in the order of the component (sample ids of an epoch). The shards that are being fetched ahead come
    on top.
    """
    if limit_bytes is None:
        return
    sizes = _cached_bytes(corpus)
    needed = int(downloads_at_once * sizes.max(initial=0))
    for component, order in zip(components, orders, strict=True):
        # where samples are repeated, their shards come again and again, and are not in use in between
        if component.sampling is None:
            samples = order.astype(np.int64) + component.first_sample
            needed += _peak_bytes(corpus, samples, sizes, component.order.num_canonical_nodes, world)
    if limit_bytes < needed:
        raise CacheError(
            f"cache_limit {limit_bytes:,} is below the {needed:,} bytes of shards that this node uses at a time. "
            f"Raise it to {needed:,} or more, or make shuffle_block_size or num_canonical_nodes smaller"
        )


def _cached_bytes(corpus: Corpus) -> Ints:
    """The bytes that each shard takes in the cache: none where it is mapped in place."""
    return np.array(
        [0 if is_in_place(dataset, shard) else shard.raw.bytes for dataset in corpus.datasets for shard in dataset.shards],
        np.int64,
    )


def _peak_bytes(corpus: Corpus, order: Ints, sizes: Ints, num_nodes: int, world: World) -> int:
    positions = np.arange(len(order))
    num_hosts = max(1, world.size // world.ranks_per_node)
    if num_hosts > 1 and num_nodes % num_hosts == 0:
        positions = positions[positions % num_nodes % num_hosts == world.rank // world.ranks_per_node]
    shards = corpus.shards_of(order[positions])
    steps = positions // num_nodes
    used, first = np.unique(shards, return_index=True)
    last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
    in_use = np.zeros(int(steps[-1]) + 2, np.int64) if len(steps) else np.zeros(1, np.int64)
    np.add.at(in_use, steps[first], sizes[used])
    np.add.at(in_use, steps[last] + 1, -sizes[used])
    return int(np.cumsum(in_use).max())
