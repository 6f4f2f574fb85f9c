"""Draw the samples of an epoch for streams with `repeat` or `choose`, like StreamingDataset.

    shards    0 1 2 3 | 4 5              one stream of two shards, with choose=9
    runs      0 1 2 3 | 0 2 | 4 5 | 4    each shard once, and 3 drawn: 2 from the first shard

The shuffle then treats each run as a shard.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.order.spec import OrderConfig, Sampling
from cloudload.system.arrays import Ids

_DRAWN_AT_ONCE = 1 << 20


def resample(
    shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling
) -> tuple[Ids, Ids]:
    """Draw the sample IDs that an epoch reads, and return them with the sizes of their runs.

    `shard_sizes` is int64 [shards]. The IDs are not shuffled yet. They are uint32 or int64
    [num_positions] (`id_dtype`). The sizes are int64 [runs]. A run is one pass over a shard, or the
    sorted draw of the shard's remainder. The seeds are the same as Streaming's. One generator draws
    samples within the shards of all streams. A second one, reseeded for each stream, divides the
    stream's remainder among its shards. Without shuffle, the second generator has the same seed in
    every epoch.
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
            # as in Streaming, an empty shard has no run
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
    """The dtype of sample IDs: uint32 if they fit, otherwise int64."""
    return np.dtype(np.uint32 if shard_sizes.sum() < 1 << 32 else np.int64)


def reads_per_shard(shard_sizes: Ids, choose: int, seed: int) -> Ids:
    """The number of samples that an epoch reads from each shard of a stream: int64 [shards].

    The numbers add up to `choose`, and equal those of Streaming's `get_sampling`. `shard_sizes` is
    int64 [shards].
    """
    num_samples = int(shard_sizes.sum())
    passes, rest = divmod(choose, max(1, num_samples))
    reads: Ids = shard_sizes * passes
    if rest:
        # this draws the same numbers as `Generator.permutation`, but uses half the memory
        drawn, stops = np.arange(num_samples, dtype=id_dtype(shard_sizes)), np.cumsum(shard_sizes)
        np.random.default_rng(seed).shuffle(drawn)
        for start in range(0, rest, _DRAWN_AT_ONCE):
            of_shards = np.searchsorted(
                stops, drawn[start : min(start + _DRAWN_AT_ONCE, rest)], side="right"
            )
            reads += np.bincount(of_shards, minlength=len(shard_sizes))
    return reads
