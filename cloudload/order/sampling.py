"""The samples of an epoch if streams have a `repeat` or `choose`, drawn as by StreamingDataset.

    shards    0 1 2 3 | 4 5              two shards of one stream that has choose=9
    runs      0 1 2 3 | 0 2 | 4 5 | 4    each shard once, then 3 more drawn: 2 from the first shard

The shuffle then permutes these runs, not the sample ids.
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
    """Draw the sample ids that an epoch reads, and return them with the sizes of their runs.

    The ids, uint32 or int64 [num_positions], are in the order before the shuffle. The sizes are
    int64 [runs]. A run is one pass over a shard, or the sorted draw of the shard's remainder, and
    the shuffle moves runs. The seeds are Streaming's: one generator draws within the shards of all
    streams; a second, restarted for each stream, divides its remainder among its shards. Without
    shuffle, the second is the same every epoch.
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
            # as in Streaming, an empty shard makes no run
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
    """The integer type of sample ids: uint32 if they fit, otherwise int64."""
    return np.dtype(np.uint32 if shard_sizes.sum() < 1 << 32 else np.int64)


def reads_per_shard(shard_sizes: Ids, choose: int, seed: int) -> Ids:
    """How many of a stream's `choose` samples are read from each of its shards: int64 [shards].

    Equal to Streaming's `get_sampling`.
    """
    num_samples = int(shard_sizes.sum())
    passes, rest = divmod(choose, max(1, num_samples))
    reads: Ids = shard_sizes * passes
    if rest:
        # same draw as `Generator.permutation`, at half the memory
        drawn, stops = np.arange(num_samples, dtype=id_dtype(shard_sizes)), np.cumsum(shard_sizes)
        np.random.default_rng(seed).shuffle(drawn)
        for start in range(0, rest, _DRAWN_AT_ONCE):
            of_shards = np.searchsorted(
                stops, drawn[start : min(start + _DRAWN_AT_ONCE, rest)], side="right"
            )
            reads += np.bincount(of_shards, minlength=len(shard_sizes))
    return reads
