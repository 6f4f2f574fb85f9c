"""Which samples an epoch reads where streams have a `repeat` or `choose`: StreamingDataset's draw.

    shards       0 1 2 3 | 4 5            two of one stream, which is to give 9 samples an epoch
    runs         0 1 2 3 | 0 2 | 4 5 | 4  each shard once, and a draw of 3 more: two fall on the first, one on the second

What is shuffled then is not the sample ids but these runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.arrays import Ids
from cloudload.order.spec import OrderConfig, Sampling

_DRAWN_AT_ONCE = 1 << 20


def resample(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling
) -> tuple[Ids, Ids]:
    """The sample ids that an epoch reads, before the shuffle, and the sizes of the runs that it
    moves.

    A run is one pass through a shard, or the sorted draw that is left over. Seeds are Streaming's:
    one generator draws within the shards of all streams; another, afresh for each stream, divides
    its draw among its shards, and without shuffle it does so alike in every epoch.
    """
    assert sum(sampling.shards_per_stream) == len(shard_sizes)
    within = np.random.default_rng(config.seed + epoch)
    among = config.seed + epoch if config.shuffle else config.seed
    stops = np.cumsum(sampling.shards_per_stream)[:-1]
    starts = np.split(np.cumsum(shard_sizes) - shard_sizes, stops)
    ids = np.empty(sampling.num_positions, id_dtype(shard_sizes))
    run_sizes: list[int] = []
    filled = 0
    for first_ids, sizes, choose in zip(
        starts, np.split(shard_sizes, stops), sampling.choose, strict=True
    ):
        reads = reads_per_shard(sizes, choose, among)
        for first, size, num_reads in zip(
            first_ids.tolist(), sizes.tolist(), reads.tolist(), strict=True
        ):
            # as in Streaming, a shard without samples is no run
            passes, rest = divmod(num_reads, size) if size else (0, 0)
            whole = passes * size
            ids[filled : filled + whole].reshape(passes, size)[:] = np.arange(first, first + size)
            if rest:
                ids[filled + whole : filled + num_reads] = first + np.sort(
                    within.choice(size, rest, replace=False)
                )
            run_sizes += [size] * passes + [rest] * bool(rest)
            filled += num_reads
    return ids, np.array(run_sizes, np.int64)


def id_dtype(shard_sizes: Ids) -> np.dtype[Any]:
    """What holds a sample id."""
    return np.dtype(np.uint32 if shard_sizes.sum() < 1 << 32 else np.int64)


def reads_per_shard(shard_sizes: Ids, choose: int, seed: int) -> Ids:
    """How many of a stream's `choose` samples come from each of its shards: Streaming's
    `get_sampling`, sample by sample."""
    num_samples = int(shard_sizes.sum())
    passes, rest = divmod(choose, max(1, num_samples))
    reads: Ids = shard_sizes * passes
    if rest:
        # what `permutation` does, in half of the memory
        drawn, stops = np.arange(num_samples, dtype=id_dtype(shard_sizes)), np.cumsum(shard_sizes)
        np.random.default_rng(seed).shuffle(drawn)
        for start in range(0, rest, _DRAWN_AT_ONCE):
            of_shards = np.searchsorted(
                stops, drawn[start : min(start + _DRAWN_AT_ONCE, rest)], side="right"
            )
            reads += np.bincount(of_shards, minlength=len(shard_sizes))
    return reads
