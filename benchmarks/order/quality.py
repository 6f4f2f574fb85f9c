"""Measure how far the shuffle moves the documents of one canonical node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Row
from benchmarks.order.scale import BLOCK, PER_SHARD, SEED
from cloudload.order import streaming_shuffles as shuffles
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.order.spec import OrderConfig
from cloudload.system.arrays import Ints
from testkit.reference_order import canonical_order


def measure_quality(num_shards: int) -> Iterator[Row]:
    """Yield the figures of each shuffle algorithm for a canonical node of `num_shards` shards."""
    sizes = np.full(num_shards, PER_SHARD)
    inner = slice(2 * BLOCK, -2 * BLOCK)
    for algorithm in ("py1e", "py1br", "seekable"):
        travels, distinct, same = [], [], []
        for epoch in range(3):
            ids = canonical_order(sizes, OrderConfig(True, algorithm, BLOCK, 1, SEED), epoch)
            places = np.empty(len(ids), np.int64)
            places[_unshuffled(algorithm, sizes, epoch)] = np.arange(len(ids))
            travels.append(np.abs(places[ids] - np.arange(len(ids)))[inner])
            shards = ids // PER_SHARD
            distinct += [
                len(np.unique(shards[start : start + 2_048]))
                for start in range(2 * BLOCK, len(ids) - 2 * BLOCK, 2_048)
            ]
            same.append((shards[1:] == shards[:-1])[inner].mean())
        travel = np.concatenate(travels)
        yield {
            "algorithm": algorithm,
            "median travel / block": float(np.median(travel) / BLOCK),
            "mean / block": float(travel.mean() / BLOCK),
            "largest / block": float(travel.max() / BLOCK),
            "shards in 2,048 documents": f"{np.mean(distinct):.2f} ({min(distinct)} to "
            f"{max(distinct)})",
            "neighbors from one shard": float(np.mean(same)),
            "χ² of places within a block": _uniformity(algorithm),
        }


def _unshuffled(algorithm: str, sizes: Ints, epoch: int) -> Ints:
    """Return a node's sample IDs after its shard spans are permuted but before documents move."""
    if algorithm == "seekable":
        spans = SeekableOrder(sizes, Shuffle(1, SEED, BLOCK), epoch)._spans
        begins = (np.cumsum(sizes) - sizes)[spans.shards] + spans.offsets
        return np.concatenate(
            [np.arange(b, b + n) for b, n in zip(begins, np.diff(spans.starts), strict=True)]
        )
    order = shuffles._permutation(np.random.default_rng(SEED), len(sizes))
    ends = np.cumsum(sizes)[order]
    [spans_of_node] = shuffles._divide(ends - sizes[order], ends, np.array([0, sizes.sum()]))
    permuted = spans_of_node.permuted(np.random.default_rng(SEED + epoch))
    return shuffles._laid_out(permuted, np.dtype(np.int64))


def _uniformity(algorithm: str) -> str:
    """Test whether documents move uniformly within a block.

    Counts the moves from each sixteenth of a block to each other, over 800 blocks. Returns how many
    standard deviations the χ² of these 256 counts is from its mean.
    """
    if algorithm == "py1e":
        return "- (by design not uniform)"
    table = np.zeros((16, 16), np.int64)
    rng = np.random.default_rng(1)
    order = SeekableOrder(np.array([BLOCK * 802]), Shuffle(1, SEED, BLOCK), 0)
    first = int(order._first_blocks[0])
    for number in range(800):
        start = first + number * BLOCK
        ids = (
            np.asarray(order[start : start + BLOCK]) - start
            if algorithm == "seekable"
            else rng.permutation(BLOCK)
        )
        np.add.at(table, (ids * 16 // BLOCK, np.arange(BLOCK) * 16 // BLOCK), 1)
    expected = table.sum() / 256
    freedom = 15 * 15
    deviation = (((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)
    return f"{deviation:+.1f} sd of {freedom}"
