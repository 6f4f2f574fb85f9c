"""What the order of every epoch follows from: the shuffle's settings, and how often each stream is
sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cloudload.arrays import Ids
from cloudload.config import SEEKABLE


@dataclass(frozen=True)
class OrderConfig:
    """What the order of every epoch follows from, beside the sizes of the shards."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    num_canonical_nodes: int
    seed: int

    @property
    def is_seekable(self) -> bool:
        """Whether orders are found position by position, and not built."""
        return self.shuffle_algo == SEEKABLE


@dataclass(frozen=True)
class Sampling:
    """How many samples each stream gives to an epoch, where that is not each of its samples once.

    A stream of `n` samples gives each of them `choose // n` times, and `choose % n` of them once
    more: others every epoch.
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
        """What StreamingDataset makes of each stream's `repeat` or `choose`; None where each sample
        is read once.

        Raises `ValueError` where a stream has both, or would give nothing.
        """
        samples = tuple(map(int, samples_per_stream))
        weights = zip(samples, repeat, choose, strict=True)
        chosen = tuple(
            _chosen(f"streams[{number}]", *weight) for number, weight in enumerate(weights)
        )
        return None if chosen == samples else cls(tuple(map(int, shards_per_stream)), chosen)


def _chosen(stream: str, samples: int, repeat: float | None, choose: int | None) -> int:
    """Samples that a stream gives to an epoch."""
    if repeat is not None and choose is not None:
        raise ValueError(f"{stream} has repeat {repeat!r} and choose {choose!r}. Give one of them")
    if repeat is None and choose is None:
        return samples
    if repeat is not None:
        if (
            not isinstance(repeat, int | float)
            or isinstance(repeat, bool)
            or not (math.isfinite(repeat) and repeat > 0)
        ):
            raise ValueError(f"{stream} has repeat {repeat!r}; it must be a number above 0")
        # as Streaming has it: 1.15 * 100 is 114.99…, so 114
        choose = int(repeat * samples)
    elif not isinstance(choose, int) or isinstance(choose, bool) or choose < 1:
        raise ValueError(f"{stream} has choose {choose!r}; it must be a whole number of at least 1")
    if not samples or not choose:
        weight = f"choose {choose!r}" if repeat is None else f"repeat {repeat!r}"
        raise ValueError(
            f"{stream} has {weight}, which is none of its {samples:,} samples. Give it more, or "
            "leave it out"
        )
    return choose


def num_positions(shard_sizes: Ids, sampling: Sampling | None) -> int:
    """Samples of an epoch."""
    return int(shard_sizes.sum()) if sampling is None else sampling.num_positions
