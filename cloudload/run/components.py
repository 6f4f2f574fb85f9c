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

import numpy as np

from cloudload.config import RowsConfig
from cloudload.data import Corpus, cache_folder, join_columns, selections
from cloudload.order import (
    EpochOrders,
    Lanes,
    Layout,
    OrderConfig,
    Sampling,
    identify_order,
    resolve_layout,
)
from cloudload.system import NEVER, Ints

_MOST_BARREN = 100_000
_MOST_DOCUMENTS = 1 << 48  # of all epochs of a finite run


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
    num_selected: int
    """Number of samples that are read, which is less than `num_samples` with a selection."""
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

    @property
    def selected_share(self) -> float:
        """The share of the samples that are read, above 0 and at most 1."""
        return self.num_selected / max(1, self.num_samples)


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

    def find_samples(self, orders: EpochOrders, lanes: Ints, ordinals: Ints) -> tuple[Ints, Ints]:
        """The epoch of each document, and its sample in the corpus; -1 for a hole.

        A hole is a position at the end of an epoch without a document, or one after the last epoch.
        `lanes` and `ordinals`, and the results, are int64 arrays of one shape. Raises `CacheError`
        if the order of an epoch is not on disk and cannot be written.
        """
        epochs, positions = self.lanes.epoch_positions(lanes, ordinals)
        is_there = (positions < self.lanes.num_positions) & (epochs < (self.lanes.epochs or NEVER))
        samples = np.full(positions.shape, -1, np.int64)
        found = orders.samples_at(epochs[is_there], positions[is_there])
        samples[is_there] = found + self.first_sample
        return epochs, samples

    def orders(self, cache_root: Path) -> EpochOrders:
        """The order of each epoch. Orders that are kept on disk are in files under `cache_root`.

        Sample IDs are indices within the component.
        """
        return EpochOrders(
            cache_root / cache_folder.ORDERS_FOLDER, self.shard_sizes, self.order, self.sampling
        )


def specify_components(
    config: RowsConfig, corpus: Corpus, selected: Sequence[selections.Selection | None]
) -> list[ComponentSpec]:
    """Specify the components of a run, in the order of its streams.

    `selected` has the selection of each stream, or None for a stream that is read whole. Raises
    `ValueError` if a `repeat` or `choose` is invalid or selects no samples.
    """
    num_streams = len(config.streams)
    if config.is_mixed:
        ranges = [range(stream, stream + 1) for stream in range(num_streams)]
    else:
        ranges = [range(num_streams)]
    return [_specify(config, corpus, streams, selected) for streams in ranges]


def build_components(
    config: RowsConfig, specs: Sequence[ComponentSpec], layout: Layout
) -> tuple[Component, ...]:
    """Build a component from each spec, with the order and the lanes that `layout` specifies.

    A spec may be a `Component` already. Its order and lanes are then replaced. Raises `ValueError`
    if there are too many epochs.
    """
    for spec in specs:
        _check_epochs(config, spec)
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


def _check_epochs(config: RowsConfig, spec: ComponentSpec) -> None:
    epochs, most = config.epochs_of(spec.streams), _MOST_DOCUMENTS // max(1, spec.num_positions)
    if epochs is not None and epochs > most:
        label = config.streams[spec.streams.start].label
        raise ValueError(
            f"epochs or max_epochs of {label} is {epochs:,}, and an epoch has "
            f"{spec.num_positions:,} documents. Use at most {most:,}, or None for a run without end"
        )


def settle_layout(
    config: RowsConfig, specs: Sequence[ComponentSpec], saved: Layout | None = None
) -> Layout:
    """Choose the layout of components; see `resolve_layout`."""
    sizes = [(each.num_positions, len(each.shard_sizes)) for each in specs]
    num_read = sum(round(each.num_positions * each.selected_share) for each in specs)
    return resolve_layout(config, sizes, saved, num_read)


def order_corpus(
    config: RowsConfig, corpus: Corpus, selected: Sequence[selections.Selection | None]
) -> Component:
    """Return the only component of a config without a mixture, as a new run orders it.

    `selected` is that of `specify_components`. Raises its errors, and those of `resolve_layout`.
    """
    specs = specify_components(config, corpus, selected)
    [component] = build_components(config, specs, settle_layout(config, specs))
    return component


def _specify(
    config: RowsConfig,
    corpus: Corpus,
    streams: range,
    selected: Sequence[selections.Selection | None],
) -> ComponentSpec:
    datasets = corpus.datasets[streams.start : streams.stop]
    asked = config.streams[streams.start : streams.stop]
    sizes = [each.table.samples for each in datasets]
    chosen = selected[streams.start : streams.stop]
    return ComponentSpec(
        streams=streams,
        first_sample=int(corpus.stream_starts[streams.start]),
        shard_sizes=join_columns(sizes),
        raw_bytes=sum(int(each.table.raw_bytes.sum()) for each in datasets),
        num_selected=sum(
            int(each.sum()) if of is None else of.num_selected
            for each, of in zip(sizes, chosen, strict=True)
        ),
        sampling=Sampling.of(
            [int(each.sum()) for each in sizes],
            [len(each) for each in sizes],
            [stream.repeat for stream in asked],
            [stream.choose for stream in asked],
            [stream.label for stream in asked],
        ),
    )
