"""The inputs of an epoch's order, except for the shard sizes and the epoch.

These are the shuffle settings and the number of samples that each stream contributes.

    stream of 100 samples        read in an epoch
    repeat 2.5                   250: each sample twice, and 50 of them a third time
    choose 30                     30: drawn again every epoch
    neither                      100: each once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cloudload.config import choices
from cloudload.system import Ids


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
