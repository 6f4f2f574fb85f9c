"""The samples that a StreamingDataset assigns to each rank, computed by Streaming's `generate_work`
without shared memory."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cloudload.system.arrays import Ints

Weight = dict[str, Any]


@dataclass(frozen=True)
class Physical:
    """The size of a run: nodes, ranks per node, workers per rank, and batch size per rank."""

    nodes: int
    ranks: int
    workers: int
    batch_size: int

    @property
    def global_batch(self) -> int:
        """Samples per step, across all ranks."""
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
    """The attributes of a StreamingDataset that `generate_work` reads. `streams` lists the number
    of samples in each shard of each stream."""
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
    """Count how often the ranks read each sample in the next `steps` steps. Returns the counts and
    the new state.

    A place that this or an earlier call has read is not counted again (`dataset.places`)."""
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
    """The IDs of an epoch's samples, in their order before the shuffle. IDs may repeat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, small_per_big = dataset.resample_streams(epoch)
    return np.asarray(small_per_big)
