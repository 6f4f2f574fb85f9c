"""The samples that a StreamingDataset gives each rank: its own `generate_work`, without shared
memory."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cloudload.arrays import Ints

Weight = dict[str, Any]


@dataclass(frozen=True)
class Physical:
    """The machines of a run: nodes, ranks per node, workers per rank; and samples per batch."""

    nodes: int
    ranks: int
    workers: int
    batch_size: int

    @property
    def global_batch(self) -> int:
        """Samples per step."""
        return self.nodes * self.ranks * self.batch_size


def streaming_dataset(
    streams: Sequence[Sequence[int]],
    weights: Sequence[Weight],
    algorithm: str | None,
    *,
    num_nodes: int,
    seed: int,
    block_size: int,
    partition: str = "relaxed",
) -> SimpleNamespace:
    """The attributes of a StreamingDataset that `generate_work` reads, for streams with these shard
    sizes."""
    from streaming import Stream, StreamingDataset

    samples = np.array([sum(shards) for shards in streams])
    shards, theirs = np.concatenate(streams), [SimpleNamespace(**weight) for weight in weights]
    num_shards = np.array(list(map(len, streams)))
    dataset = SimpleNamespace(
        streams=theirs,
        num_streams=len(streams),
        shards_per_stream=num_shards,
        shard_offset_per_stream=np.cumsum(num_shards) - num_shards,
        samples_per_shard=shards,
        sample_offset_per_shard=np.cumsum(shards) - shards,
        sampling_method="balanced",
        sampling_granularity=1,
        epoch_seed_change=algorithm is not None,
        epoch_size=Stream.apply_weights(theirs, samples, None, seed),
        shuffle=algorithm is not None,
        shuffle_algo=algorithm or "py1e",
        shuffle_seed=seed,
        shuffle_block_size=block_size,
        partition_algo=partition,
        num_canonical_nodes=num_nodes,
        initial_physical_nodes=None,
        batch_size=1,
    )
    dataset.resample_streams = lambda epoch: StreamingDataset.resample_streams(dataset, epoch)
    return dataset


def read_steps(
    dataset: SimpleNamespace, physical: Physical, state: dict[str, int], steps: int
) -> tuple[collections.Counter[int], dict[str, int]]:
    """The samples read in some steps after a state, and the state after them.

    Excludes Streaming's repeats of places that this or an earlier call read (`dataset.places`)."""
    from streaming.base.batching import generate_work
    from streaming.base.partition import get_partitions
    from streaming.base.world import World

    if state["initial_physical_nodes"]:
        dataset.initial_physical_nodes = state["initial_physical_nodes"]
    dataset.batch_size = physical.batch_size
    world = World(physical.nodes, physical.ranks, physical.workers, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = generate_work("random", dataset, world, state["epoch"], state["sample_in_epoch"])
        places = get_partitions(
            dataset.partition_algo,
            dataset.epoch_size,
            dataset.num_canonical_nodes,
            physical.nodes,
            physical.ranks,
            physical.workers,
            physical.batch_size,
            state["sample_in_epoch"],
            dataset.initial_physical_nodes,
        )
    seen = dataset.__dict__.setdefault("places", set())
    read: collections.Counter[int] = collections.Counter()
    num_read = 0
    for step in range(min(steps, work.shape[2] * work.shape[3])):
        index, worker = divmod(step, physical.workers)
        samples, at = work[:, :, worker, index].ravel(), places[:, :, worker, index].ravel()
        for sample, place in zip(samples.tolist(), at.tolist(), strict=True):
            if sample < 0:
                continue
            num_read += 1
            if place not in seen:
                seen.add(place)
                read[sample] += 1
    return read, {
        **state,
        "sample_in_epoch": state["sample_in_epoch"] + num_read,
        "initial_physical_nodes": state["initial_physical_nodes"] or physical.nodes,
    }


def order_of_epoch(dataset: SimpleNamespace, epoch: int) -> Ints:
    """How often each sample is read in an epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, small_per_big = dataset.resample_streams(epoch)
    return np.asarray(small_per_big)
