"""The canonical order: which document stands at which position of an epoch.

    shuffled     what StreamingDataset's shuffle makes of the sample ids:   5 3 4 | 1 0 2     (two canonical nodes)
    order        one id of each canonical node in turn:                     5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`. The order knows no world: it is
what a `StreamingDataset` yields to a single worker, less the ids that Streaming repeats to even out
its partitions. The algorithm "seekable" is our own.

Where streams have a `repeat` or `choose`, what is shuffled is not the sample ids but the reads of
an epoch, shard by shard:

    shards       0 1 2 3 | 4 5            two of one stream, which is to give 9 samples an epoch
    runs         0 1 2 3 | 0 2 | 4 5 | 4  each shard once, and a draw of 3 more: two fall on the first, one on the second
"""

from __future__ import annotations

import itertools
import logging

import numpy as np

from cloudload.arrays import Ids
from cloudload.order.sampling import resample
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.order.spec import OrderConfig, Sampling, num_positions
from cloudload.order.streaming_shuffles import shuffle_nodes

logger = logging.getLogger(__name__)


def canonical_order(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> Ids:
    """The sample id at each position: int64 [samples], or [sampling.num_positions] with repeats and
    gaps."""
    if config.is_seekable:
        return np.asarray(seekable_order(shard_sizes, config, epoch, sampling))
    order = np.empty(num_positions(shard_sizes, sampling), np.int64)
    fill_order(order, shard_sizes, config, epoch, sampling)
    return order


def seekable_order(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> SeekableOrder:
    """The order of the algorithm "seekable", of which no array is made."""
    shuffle = Shuffle(
        config.num_canonical_nodes,
        config.seed,
        config.shuffle_block_size if config.shuffle else None,
    )
    weights = (
        None
        if sampling is None
        else list(zip(sampling.shards_per_stream, sampling.choose, strict=True))
    )
    return SeekableOrder(shard_sizes, shuffle, epoch, weights)


def fill_order(
    order: Ids, shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> None:
    """Write an epoch's order to an array of as many positions, of any type that holds the ids, one
    canonical node at a time."""
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
    """Write a node's ids to its positions: one of every round, and one of those at the end where it
    is longer than others."""
    num_nodes = len(bounds) - 1
    rounds = len(order) // num_nodes
    order[node : rounds * num_nodes : num_nodes] = ids[:rounds]
    if len(ids) > rounds:
        order[rounds * num_nodes + int((np.diff(bounds[: node + 1]) > rounds).sum())] = ids[rounds]


def interleave(ids: Ids, num_nodes: int) -> Ids:
    """One id of each node's slice in turn; node `n` has `ids[n * len // num_nodes : (n + 1) * len
    // num_nodes]`."""
    bounds = np.arange(num_nodes + 1) * len(ids) // num_nodes
    order = np.empty_like(ids)
    for node in range(num_nodes):
        _deal(order, bounds, node, ids[bounds[node] : bounds[node + 1]])
    return order


def positions_of(order: Ids | SeekableOrder, sample: int) -> Ids:
    """Where a sample stands in an order: int64 [times], ascending."""
    return (
        order.positions_of(sample)
        if isinstance(order, SeekableOrder)
        else np.flatnonzero(order == sample)
    )
