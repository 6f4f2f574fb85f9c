"""The canonical order: the sample at each position of an epoch.

    shuffled     sample IDs after StreamingDataset's shuffle     5 3 4 | 1 0 2   (2 canonical nodes)
    order        one ID from each canonical node in turn         5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`, except in a last, partial round.
The order is independent of the world size. Unless the shuffle is "seekable", which is our own, it
is the order in which a `StreamingDataset` yields samples to a single worker, without the IDs that
Streaming repeats to pad its partitions.
"""

from __future__ import annotations

import itertools

import numpy as np

from cloudload.order.sampling import resample
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.order.spec import OrderConfig, Sampling
from cloudload.order.streaming_shuffles import shuffle_nodes
from cloudload.system.arrays import Ids


def seekable_order(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> SeekableOrder:
    """Create an epoch's "seekable" order, which computes samples by position.

    `shard_sizes` is int64 [shards].
    """
    shuffle = Shuffle(
        config.num_canonical_nodes,
        config.seed,
        config.shuffle_block_size if config.shuffle else None,
    )
    weights = None
    if sampling is not None:
        weights = list(zip(sampling.shards_per_stream, sampling.choose, strict=True))
    return SeekableOrder(shard_sizes, shuffle, epoch, weights)


def fill_order(
    order: Ids, shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> None:
    """Write an epoch's sample IDs to `order`, one canonical node at a time.

    `order` is an array of `num_positions(shard_sizes, sampling)` integers, of any dtype that can
    hold the IDs. `shard_sizes` is int64 [shards]. With `config.shuffle`, raises `ValueError` if
    `shuffle_algo` is "seekable" or unknown.
    """
    reads, run_sizes = (
        (None, shard_sizes) if sampling is None else resample(shard_sizes, config, epoch, sampling)
    )
    nodes = config.num_canonical_nodes
    bounds = np.arange(nodes + 1) * len(order) // nodes
    if config.shuffle:
        block = config.shuffle_block_size
        ids = shuffle_nodes(
            config.shuffle_algo,
            run_sizes,
            num_nodes=nodes,
            seed=config.seed,
            epoch=epoch,
            block_size=block,
        )
    else:
        ids = (np.arange(start, stop) for start, stop in itertools.pairwise(bounds))
    for node, of_node in enumerate(ids):
        _deal(order, bounds, node, of_node if reads is None else reads[of_node])


def _deal(order: Ids, bounds: Ids, node: int, ids: Ids) -> None:
    """Write a canonical node's IDs to its positions in the order.

    A round has one ID from each node. If a node has more IDs than there are full rounds, its last
    ID follows the last full round. Example: 3 nodes of 1, 1 and 2 IDs have bounds 0 1 2 4 and 1
    full round, so node 2 writes positions 2 and 3.
    """
    num_nodes = len(bounds) - 1
    rounds = len(order) // num_nodes
    order[node : rounds * num_nodes : num_nodes] = ids[:rounds]
    if len(ids) > rounds:
        order[rounds * num_nodes + int((np.diff(bounds[: node + 1]) > rounds).sum())] = ids[rounds]


def positions_of(order: Ids | SeekableOrder, sample: int) -> Ids:
    """The positions of a sample in an epoch's order: int64 [occurrences], ascending."""
    if isinstance(order, SeekableOrder):
        return order.positions_of(sample)
    return np.flatnonzero(order == sample)
