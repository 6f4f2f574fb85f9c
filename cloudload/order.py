"""The canonical order: which document stands at which position of an epoch.

    shuffled     what StreamingDataset's shuffle makes of the sample ids:   5 3 4 | 1 0 2     (two canonical nodes)
    order        one id of each canonical node in turn:                     5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`. The order knows no world: it is what a `StreamingDataset` yields
to a single worker, less the ids that Streaming repeats to even out its partitions.

Where streams have a `repeat` or `choose`, what is shuffled is not the sample ids but the reads of an epoch, shard by shard:

    shards       0 1 2 3 | 4 5            two of one stream, which is to give 9 samples an epoch
    runs         0 1 2 3 | 0 2 | 4 5 | 4  each shard once, and a draw of 3 more: two fall on the first, one on the second
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.locks import locked

Ids = np.ndarray[Any, np.dtype[Any]]

# below this, mapping costs more than reading
_MAP_FROM_BYTES = 1 << 16
_KEPT_POSITIONS, _MOST_KEPT_EPOCHS = 1 << 16, 256


@dataclass(frozen=True)
class OrderConfig:
    """What the order of every epoch follows from, beside the sizes of the shards."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    num_canonical_nodes: int
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How many samples each stream gives to an epoch, where that is not each of its samples once.

    A stream of `n` samples gives each of them `choose // n` times, and `choose % n` of them once more: others every epoch.
    """

    shards_per_stream: tuple[int, ...]
    choose: tuple[int, ...]
    """Samples that each stream gives to every epoch."""

    @property
    def num_positions(self) -> int:
        """Samples of an epoch."""
        return sum(self.choose)

    @classmethod
    def of(
        cls,
        samples_per_stream: Sequence[int],
        shards_per_stream: Sequence[int],
        repeat: Sequence[float | None],
        choose: Sequence[int | None],
    ) -> Sampling | None:
        """What StreamingDataset makes of each stream's `repeat` or `choose`; None where each sample is read once.

        Raises `ValueError` where a stream has both, or would give nothing.
        """
        samples = tuple(map(int, samples_per_stream))
        weights = zip(samples, repeat, choose, strict=True)
        chosen = tuple(_chosen(f"streams[{number}]", *weight) for number, weight in enumerate(weights))
        return None if chosen == samples else cls(tuple(map(int, shards_per_stream)), chosen)


def _chosen(stream: str, samples: int, repeat: float | None, choose: int | None) -> int:
    """Samples that a stream gives to an epoch."""
    if repeat is not None and choose is not None:
        raise ValueError(f"{stream} has repeat {repeat!r} and choose {choose!r}. Give one of them")
    if repeat is None and choose is None:
        return samples
    if repeat is not None:
        if not isinstance(repeat, int | float) or isinstance(repeat, bool) or not (math.isfinite(repeat) and repeat > 0):
            raise ValueError(f"{stream} has repeat {repeat!r}; it must be a number above 0")
        # as Streaming has it: 1.15 * 100 is 114.99…, so 114
        choose = int(repeat * samples)
    elif not isinstance(choose, int) or isinstance(choose, bool) or choose < 1:
        raise ValueError(f"{stream} has choose {choose!r}; it must be a whole number of at least 1")
    if not samples or not choose:
        weight = f"choose {choose!r}" if repeat is None else f"repeat {repeat!r}"
        raise ValueError(f"{stream} has {weight}, which is none of its {samples:,} samples. Give it more, or leave it out")
    return choose


def canonical_order(shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None) -> Ids:
    """The sample id at each position: int64 [samples], or [sampling.num_positions] with repeats and gaps."""
    reads, run_sizes = (None, shard_sizes) if sampling is None else resample(shard_sizes, config, epoch, sampling)
    order = interleave(_shuffle(run_sizes, config, epoch), config.num_canonical_nodes)
    return order if reads is None else reads[order]


def _shuffle(run_sizes: Ids, config: OrderConfig, epoch: int) -> Ids:
    """The numbers of what stands in consecutive runs, shuffled."""
    if not config.shuffle:
        return np.arange(run_sizes.sum(), dtype=np.int64)
    # importing Streaming takes seconds and hundreds of MB
    from streaming.base.shuffle import get_shuffle

    shuffled: Ids = get_shuffle(
        config.shuffle_algo, run_sizes, config.num_canonical_nodes, config.seed, epoch, config.shuffle_block_size
    )
    return shuffled


def resample(shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling) -> tuple[Ids, Ids]:
    """The sample ids that an epoch reads, before the shuffle, and the sizes of the runs that it moves.

    A run is one pass through a shard, or the sorted draw that is left over. Seeds are Streaming's: one generator draws
    within the shards of all streams; another, afresh for each stream, divides its draw among its shards, and without
    shuffle it does so alike in every epoch.
    """
    assert sum(sampling.shards_per_stream) == len(shard_sizes)
    within = np.random.default_rng(config.seed + epoch)
    among = config.seed + epoch if config.shuffle else config.seed
    stops = np.cumsum(sampling.shards_per_stream)[:-1]
    starts = np.split(np.cumsum(shard_sizes) - shard_sizes, stops)
    runs: list[Ids] = []
    for first_ids, sizes, choose in zip(starts, np.split(shard_sizes, stops), sampling.choose, strict=True):
        reads = reads_per_shard(sizes, choose, among)
        for first, size, num_reads in zip(first_ids.tolist(), sizes.tolist(), reads.tolist(), strict=True):
            # as in Streaming, a shard without samples is no run
            passes, rest = divmod(num_reads, size) if size else (0, 0)
            runs += [np.arange(first, first + size)] * passes
            if rest:
                runs.append(first + np.sort(within.choice(size, rest, replace=False)))
    return np.concatenate(runs), np.array([len(run) for run in runs], np.int64)


def reads_per_shard(shard_sizes: Ids, choose: int, seed: int) -> Ids:
    """How many of a stream's `choose` samples come from each of its shards: Streaming's `get_sampling`, sample by sample."""
    num_samples = int(shard_sizes.sum())
    passes, rest = divmod(choose, max(1, num_samples))
    reads: Ids = shard_sizes * passes
    if rest:
        drawn = np.random.default_rng(seed).permutation(num_samples)[:rest]
        reads += np.bincount(np.searchsorted(np.cumsum(shard_sizes), drawn, side="right"), minlength=len(shard_sizes))
    return reads


def interleave(ids: Ids, num_nodes: int) -> Ids:
    """One id of each node's slice in turn; node `n` has `ids[n * len // num_nodes : (n + 1) * len // num_nodes]`."""
    starts = np.arange(num_nodes + 1) * len(ids) // num_nodes
    rounds = len(ids) // num_nodes
    order = np.empty_like(ids)
    for node in range(num_nodes):
        order[node : rounds * num_nodes : num_nodes] = ids[starts[node] : starts[node] + rounds]
    longer = np.flatnonzero(np.diff(starts) > rounds)
    order[rounds * num_nodes :] = ids[starts[longer + 1] - 1]
    return order


class EpochOrders:
    """The orders of a run, each built once per node, kept in a file and mapped."""

    def __init__(self, folder: Path, shard_sizes: Ids, config: OrderConfig, sampling: Sampling | None = None) -> None:
        self._shard_sizes, self._config, self._sampling = shard_sizes, config, sampling
        digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
        digest.update(np.ascontiguousarray(shard_sizes, np.int64).tobytes())
        if sampling is not None:
            digest.update(json.dumps(asdict(sampling), sort_keys=True).encode())
        self._folder = folder / digest.hexdigest()[:24]
        self._orders: dict[int, Ids] = {}
        # lanes drift apart by less than an epoch, save on tiny data, where keeping many costs nothing
        positions = sampling.num_positions if sampling is not None else int(shard_sizes.sum())
        self._kept_epochs = min(_MOST_KEPT_EPOCHS, max(2, _KEPT_POSITIONS // max(1, positions)))

    def __call__(self, epoch: int) -> Ids:
        """The sample id at each position of `epoch`: [samples], read-only."""
        if epoch not in self._orders:
            path = self._folder / f"epoch-{epoch}.npy"
            try:
                order = _load(path)
            except FileNotFoundError:
                order = self._build(path, epoch)
            self._orders = {e: kept for e, kept in self._orders.items() if e >= epoch - self._kept_epochs}
            self._orders[epoch] = order
        return self._orders[epoch]

    def _build(self, path: Path, epoch: int) -> Ids:
        self._folder.mkdir(parents=True, exist_ok=True)
        # files are removed under the lock alone, so that this one is still there when it is mapped
        with locked(self._folder / "build.lock"):
            if path.exists():
                return _load(path)
            order = canonical_order(self._shard_sizes, self._config, epoch, self._sampling)
            narrow = np.uint32 if self._shard_sizes.sum() < 1 << 32 else np.int64
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                np.save(file, order.astype(narrow))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            if epoch % self._kept_epochs == 0:
                self._remove_before(epoch - self._kept_epochs)
            return _load(path)

    def _remove_before(self, epoch: int) -> None:
        for old in self._folder.glob("epoch-*.npy"):
            if int(old.stem.removeprefix("epoch-")) < epoch:
                old.unlink(missing_ok=True)


def _load(path: Path) -> Ids:
    order: Ids = np.load(path, mmap_mode="r" if path.stat().st_size > _MAP_FROM_BYTES else None)
    return order.view(np.ndarray)  # a memmap is slow to index
