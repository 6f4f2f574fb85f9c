"""The components of a run: groups of streams, each with its own order, pace and epochs.

    no proportions or schedule     one component of all streams, read as one corpus
    proportions or a schedule      one component per stream; the mixture assigns rows to components

    config, corpus ─► ComponentSpec, from the data alone ─► layout ─► Component

A component has a cursor in every lane. Sample 0 of a component is sample `first_sample` of the
corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from cloudload.config import RowsConfig
from cloudload.data import Corpus, cache_folder, join_columns
from cloudload.order import (
    EpochOrders,
    Lanes,
    Layout,
    OrderConfig,
    Sampling,
    identify_order,
    resolve_layout,
)
from cloudload.system import Ints

_MOST_BARREN = 100_000


@dataclass(frozen=True)
class ComponentSpec:
    """The part of a component that depends only on config and data, not on the layout."""

    streams: range
    """Indices of the component's streams in the corpus."""
    first_sample: int
    """Index of the component's first sample in the corpus."""
    shard_sizes: Ints
    """Number of samples in each shard: int64 [shards]."""
    raw_bytes: int
    """Total uncompressed size of the component's shards, in bytes."""
    sampling: Sampling | None
    """Number of samples of each stream in an epoch; None if an epoch reads every sample once."""

    @property
    def num_samples(self) -> int:
        """Number of samples in the component's streams."""
        return int(self.shard_sizes.sum())

    @property
    def num_positions(self) -> int:
        """Number of documents in an epoch."""
        return self.num_samples if self.sampling is None else self.sampling.num_positions


@dataclass(frozen=True)
class Component(ComponentSpec):
    """Streams that share one order, and the lanes that divide its positions."""

    order: OrderConfig
    lanes: Lanes

    @property
    def most_barren(self) -> int:
        """An endless lane with more consecutive documents without tokens counts as having none.

        Without a shuffle, a lane only repeats an epoch's documents. With one, it reads others in
        each epoch. If one of N documents has tokens, a lane misses it 20 · N times in a row with a
        probability of e⁻²⁰. From 5,000 documents on, fewer epochs are read.
        """
        num_positions = self.lanes.num_positions
        varies = self.order.shuffle or self.sampling is not None
        return (
            max(num_positions, min(20 * num_positions, _MOST_BARREN)) if varies else num_positions
        )

    @property
    def order_ids(self) -> str:
        """See `identify_order`."""
        return identify_order(self.order, self.sampling)

    def orders(self, cache_root: Path) -> EpochOrders:
        """The order of each epoch. Orders that are kept on disk are in files under `cache_root`.

        Sample IDs are indices within the component.
        """
        return EpochOrders(
            cache_root / cache_folder.ORDERS_FOLDER, self.shard_sizes, self.order, self.sampling
        )


def specify_components(config: RowsConfig, corpus: Corpus) -> list[ComponentSpec]:
    """Specify the components of a run, in the order of its streams.

    Raises `ValueError` if a `repeat` or `choose` is invalid or selects no samples.
    """
    num_streams = len(config.streams)
    if config.is_mixed:
        return [
            _specify(config, corpus, range(stream, stream + 1)) for stream in range(num_streams)
        ]
    return [_specify(config, corpus, range(num_streams))]


def build_components(
    config: RowsConfig, specs: Sequence[ComponentSpec], layout: Layout
) -> tuple[Component, ...]:
    """Build a component from each spec, with the order and the lanes that `layout` specifies.

    A spec may be a `Component` already. Its order and lanes are then replaced.
    """
    return tuple(
        Component(
            **{each.name: getattr(spec, each.name) for each in fields(ComponentSpec)},
            order=OrderConfig(config.shuffle, config.shuffle_algo, block_size, nodes, config.seed),
            lanes=Lanes(
                layout.num_lanes, spec.num_positions, config.epochs_of(spec.streams), nodes
            ),
        )
        for spec, nodes, block_size in zip(
            specs, layout.canonical_nodes, layout.shuffle_block_sizes, strict=True
        )
    )


def order_corpus(config: RowsConfig, corpus: Corpus) -> Component:
    """Return the only component of a config without a mixture, as a new run orders it.

    Raises `ValueError` as `specify_components` and `resolve_layout` do.
    """
    specs = specify_components(config, corpus)
    sizes = [(each.num_positions, len(each.shard_sizes)) for each in specs]
    [component] = build_components(config, specs, resolve_layout(config, sizes))
    return component


def _specify(config: RowsConfig, corpus: Corpus, streams: range) -> ComponentSpec:
    datasets = corpus.datasets[streams.start : streams.stop]
    asked = config.streams[streams.start : streams.stop]
    sizes = [each.table.samples for each in datasets]
    return ComponentSpec(
        streams=streams,
        first_sample=int(corpus.stream_starts[streams.start]),
        shard_sizes=join_columns(sizes),
        raw_bytes=sum(int(each.table.raw_bytes.sum()) for each in datasets),
        sampling=Sampling.of(
            [int(each.sum()) for each in sizes],
            [len(each) for each in sizes],
            [stream.repeat for stream in asked],
            [stream.choose for stream in asked],
            [stream.label for stream in asked],
        ),
    )
