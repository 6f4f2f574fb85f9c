"""Simple implementations of orders and mixtures, with which tests compare runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.order.epoch_order import (
    OrderConfig,
    Sampling,
    fill_order,
    num_positions,
    seekable_order,
)
from cloudload.order.mixture import Mixture, _shares
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.system.arrays import Ids


def canonical_order(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
) -> Ids:
    """The sample at each position of an epoch, as an array: int64 [positions]."""
    if config.is_seekable:
        return np.asarray(seekable_order(shard_sizes, config, epoch, sampling))
    order = np.empty(num_positions(shard_sizes, sampling), np.int64)
    fill_order(order, shard_sizes, config, epoch, sampling)
    return order


def interleave(ids: Ids, num_nodes: int) -> Ids:
    """Reorder samples so that the canonical nodes take turns: [samples]."""
    config = OrderConfig(False, "py1e", 1, num_nodes, 0)
    return ids[canonical_order(np.array([len(ids)]), config, 0)]


def shares_at(mixture: Mixture, row: int) -> tuple[float, ...]:
    """Each stream's share of the rows at `row`."""
    return _shares(mixture.weights_at(row))


Weight = dict[str, Any]
"""The argument `repeat` or `choose` of a stream, by name."""


def sampling_of(streams: list[list[int]], weights: list[Weight]) -> Sampling | None:
    return Sampling.of(
        [sum(shards) for shards in streams],
        [len(shards) for shards in streams],
        [weight.get("repeat") for weight in weights],
        [weight.get("choose") for weight in weights],
        [f"s{stream}" for stream in range(len(streams))],
    )


def order_of(
    sizes: list[int], num_nodes: int, block_size: int | None, seed: int = 1, epoch: int = 0
) -> SeekableOrder:
    return SeekableOrder(np.array(sizes, np.int64), Shuffle(num_nodes, seed, block_size), epoch)
