"""The components of a run: what is read in an order, a pace and epochs of its own.

    streams without proportions     one component of all of them, read as one corpus
    streams with proportions        one component each, and the mixture says whose row each row is

A component has a cursor in every lane. Its samples are numbered from 0; in the corpus they begin at
`first_sample`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudload.arrays import Ints
from cloudload.cache.folder import ORDERS_FOLDER
from cloudload.config import RowsConfig
from cloudload.mds.dataset import Corpus
from cloudload.order.epoch_orders import EpochOrders
from cloudload.order.lanes import Lanes
from cloudload.order.layout import Layout
from cloudload.order.spec import OrderConfig, Sampling


@dataclass(frozen=True)
class Component:
    """Streams that are read in one order, and how the positions of that order fall to the lanes."""

    streams: range
    """Which streams of the corpus."""
    first_sample: int
    shard_sizes: Ints
    """Samples of each shard: int64 [shards]."""
    raw_bytes: int
    sampling: Sampling | None
    order: OrderConfig
    lanes: Lanes

    @property
    def num_samples(self) -> int:
        """Samples of its streams."""
        return int(self.shard_sizes.sum())

    def orders(self, cache_root: Path) -> EpochOrders:
        """The order of each epoch, of the component's own sample numbers."""
        return EpochOrders(cache_root / ORDERS_FOLDER, self.shard_sizes, self.order, self.sampling)


def divide_streams(config: RowsConfig) -> list[range]:
    """Which streams make up each component."""
    number = len(config.streams)
    return (
        [range(stream, stream + 1) for stream in range(number)]
        if config.is_mixed
        else [range(number)]
    )


def component_sizes(config: RowsConfig, corpus: Corpus) -> list[tuple[int, int]]:
    """Documents of an epoch, and shards, of each component. Raises `ValueError` for a `repeat` or
    `choose` that gives none."""
    sizes = []
    for streams in divide_streams(config):
        sampling = _sampling(config, corpus, streams)
        samples = int(corpus.stream_starts[streams.stop] - corpus.stream_starts[streams.start])
        sizes.append(
            (sampling.num_positions if sampling else samples, sum(map(corpus.num_shards, streams)))
        )
    return sizes


def build_components(config: RowsConfig, corpus: Corpus, layout: Layout) -> tuple[Component, ...]:
    """The components of a run, in the order of its streams."""
    components = []
    first_shard = 0
    sizes = component_sizes(config, corpus)
    for place, (streams, (positions, num_shards)) in enumerate(
        zip(divide_streams(config), sizes, strict=True)
    ):
        order = OrderConfig(
            config.shuffle,
            config.shuffle_algo,
            layout.shuffle_block_sizes[place],
            layout.canonical_nodes[place],
            config.seed,
        )
        components.append(
            Component(
                streams=streams,
                first_sample=int(corpus.stream_starts[streams.start]),
                shard_sizes=np.ascontiguousarray(
                    corpus.shard_sizes[first_shard : first_shard + num_shards]
                ),
                raw_bytes=sum(
                    shard.raw.bytes
                    for stream in streams
                    for shard in corpus.datasets[stream].shards
                ),
                sampling=_sampling(config, corpus, streams),
                order=order,
                lanes=Lanes(
                    layout.num_lanes, positions, config.epochs, layout.canonical_nodes[place]
                ),
            )
        )
        first_shard += num_shards
    return tuple(components)


def _sampling(config: RowsConfig, corpus: Corpus, streams: range) -> Sampling | None:
    asked = [config.streams[stream] for stream in streams]
    samples = np.diff(corpus.stream_starts)[streams.start : streams.stop]
    return Sampling.of(
        samples.tolist(),
        [corpus.num_shards(stream) for stream in streams],
        [stream.repeat for stream in asked],
        [stream.choose for stream in asked],
    )
