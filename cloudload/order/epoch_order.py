"""The canonical order: the sample at each position of an epoch.

    shuffled     sample IDs after StreamingDataset's shuffle     5 3 4 | 1 0 2   (2 canonical nodes)
    order        one ID from each canonical node in turn         5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`, except in a last, partial round.
The order is independent of the world size. Unless the shuffle is "seekable", which is our own, it
is the order in which a `StreamingDataset` yields samples to a single worker, without the IDs that
Streaming repeats to pad its partitions. With `repeat` or `choose`, the samples of an epoch are
drawn first, as StreamingDataset does, and the shuffle treats each run as a shard:

    shards    0 1 2 3 | 4 5              one stream of two shards, with choose=9
    runs      0 1 2 3 | 0 2 | 4 5 | 4    each shard once, and 3 drawn: 2 from the first shard

    stream of 100 samples                read in an epoch
    repeat 2.5                           250: each sample twice, and 50 of them a third time
    choose 30                             30: drawn again every epoch
    neither                              100: each once
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.config import choices
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.order.streaming_shuffles import shuffle_nodes
from cloudload.system import Ids

_DRAWN_AT_ONCE = 1 << 20
_MOST_ROUNDS = 1 << 12


@dataclass(frozen=True)
class OrderConfig:
    """The settings that, with the shard sizes and the sampling, determine every epoch's order."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    """Number of documents in a shuffle block."""
    num_canonical_nodes: int
    seed: int

    @property
    def is_seekable(self) -> bool:
        """Whether the order computes samples by position instead of storing them."""
        return self.shuffle_algo == choices.SEEKABLE


@dataclass(frozen=True)
class Sampling:
    """The number of samples that each stream contributes to an epoch.

    An epoch reads each of a stream's `n` samples `choose // n` times, and `choose % n` of them once
    more. Every epoch draws these extra samples again.
    """

    shards_per_stream: tuple[int, ...]
    """Number of shards in each stream."""
    choose: tuple[int, ...]
    """Number of samples that each stream contributes to every epoch."""

    @property
    def num_positions(self) -> int:
        """Number of samples in an epoch."""
        return sum(self.choose)

    @classmethod
    def of(
        cls,
        samples_per_stream: Sequence[int],
        shards_per_stream: Sequence[int],
        repeat: Sequence[float | None],
        choose: Sequence[int | None],
        labels: Sequence[str],
    ) -> Sampling | None:
        """Compute each stream's samples per epoch from `repeat` or `choose`, like StreamingDataset.

        All arguments have one entry per stream. `labels` name the streams in messages. Returns None
        if every sample is read once. Raises `ValueError` if a stream has both options, an invalid
        one, or one that selects no samples.
        """
        samples = tuple(map(int, samples_per_stream))
        chosen = tuple(map(_chosen, labels, samples, repeat, choose))
        return None if chosen == samples else cls(tuple(map(int, shards_per_stream)), chosen)


def _chosen(label: str, samples: int, repeat: float | None, choose: int | None) -> int:
    """The number of samples that a stream contributes to an epoch."""
    stream = f"stream {label!r}"
    if repeat is not None and choose is not None:
        raise ValueError(
            f"{stream} has repeat {repeat!r} and choose {choose!r}. Use only one of them"
        )
    if repeat is None and choose is None:
        return samples
    if repeat is not None:
        is_number = isinstance(repeat, int | float) and not isinstance(repeat, bool)
        if not is_number or not (math.isfinite(repeat) and repeat > 0):
            raise ValueError(f"{stream} has repeat {repeat!r}. Use a finite number above 0")
        # truncate as Streaming does, so repeat 1.15 of 100 samples, which is 114.99…, selects 114
        choose = int(repeat * samples)
    if not samples:
        raise ValueError(
            f"{stream} has no samples. Remove its repeat or choose, or remove the stream"
        )
    if not choose:
        raise ValueError(
            f"{stream} has repeat {repeat!r}, which selects none of its {samples:,} samples. "
            "Increase repeat, or remove the stream"
        )
    return choose


def num_positions(shard_sizes: Ids, sampling: Sampling | None) -> int:
    """The number of samples in an epoch. `shard_sizes` is integer [shards]."""
    return int(shard_sizes.sum()) if sampling is None else sampling.num_positions


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
        ids = _shuffle(run_sizes, config, epoch)
    else:
        ids = (np.arange(start, stop) for start, stop in itertools.pairwise(bounds))
    for node, of_node in enumerate(ids):
        _deal(order, bounds, node, of_node if reads is None else reads[of_node])


def count_first(shard_sizes: Ids, config: OrderConfig) -> int:
    """The number of samples of `first_rounds`."""
    nodes = config.num_canonical_nodes
    return min(_MOST_ROUNDS, int(shard_sizes.sum()) // nodes) * nodes


def first_rounds(shard_sizes: Ids, config: OrderConfig, epoch: int) -> Ids:
    """The samples at the first positions of an epoch, without computing the others: integer [n].

    `config` shuffles with py1e, and samples are not drawn.
    """
    rounds = count_first(shard_sizes, config) // config.num_canonical_nodes
    nodes = list(_shuffle(shard_sizes, config, epoch, rounds))
    return np.stack(nodes, axis=1).ravel()


def _shuffle(
    run_sizes: Ids, config: OrderConfig, epoch: int, most: int | None = None
) -> Iterator[Ids]:
    """Yield the shuffled IDs of each canonical node, or the first `most` of them."""
    return shuffle_nodes(
        config.shuffle_algo,
        run_sizes,
        num_nodes=config.num_canonical_nodes,
        seed=config.seed,
        epoch=epoch,
        block_size=config.shuffle_block_size,
        most=most,
    )


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
            run_sizes += _draw(ids[filled : filled + num_reads], first, size, within)
            filled += num_reads
    return ids, np.array(run_sizes, np.int64)


def _draw(ids: Ids, first: int, size: int, rng: np.random.Generator) -> list[int]:
    """Fill `ids` from a shard of `size` samples that begin at `first`. Returns the sizes of runs.

    The runs are as many passes over the shard as fit, then a sorted draw of the rest.
    """
    # as in Streaming, an empty shard has no run
    passes, rest = divmod(len(ids), size) if size else (0, 0)
    whole = passes * size
    ids[:whole].reshape(passes, size)[:] = np.arange(first, first + size)
    if rest:
        ids[whole:] = first + np.sort(rng.choice(size, rest, replace=False))
    return [size] * passes + [rest] * bool(rest)


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
