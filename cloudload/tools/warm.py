"""Fetch the shards that a node reads next into its cache, before the run starts or resumes.

    loader at a state ─► cursors of the node's lanes ─► next documents ─► shards, in order of use
                                                                              └─► threads ─► cache

The loader then finds these shards on disk, and does not download them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cloudload.config import checks
from cloudload.data import Corpus, Fetcher, TrafficCounter, is_in_place
from cloudload.loading import check_world
from cloudload.order import World, share_rows
from cloudload.rows import residue_spans, tables
from cloudload.run import Position, RunInputs
from cloudload.system import (
    Flags,
    Ints,
    counted,
    map_in_order,
    open_progress_bar,
)

if TYPE_CHECKING:
    from cloudload.loading import CloudLoader  # which imports torch

_ORDINALS_AT_ONCE = 256


@dataclass(frozen=True)
class WarmReport:
    """The result of warming a cache."""

    shards: int
    """Number of requested shards that are now in the cache."""
    bytes: int
    """Total size of the requested shards, in uncompressed bytes."""
    shards_downloaded: int
    """Number of requested shards that had to be downloaded."""
    bytes_downloaded: int
    """Number of stored bytes that were downloaded."""
    is_all: bool
    """Whether the requested shards are all that the node reads in the next epoch."""

    def describe(self) -> Iterator[str]:
        """Yield the report as a line of text."""
        whole = " (everything that the node reads in an epoch)" if self.is_all else ""
        yield (
            f"{counted(self.shards, 'shard')} of {self.bytes:,} bytes in the cache{whole}, of "
            f"which {self.shards_downloaded:,} were downloaded ({self.bytes_downloaded:,} bytes)"
        )


def warm_cache(
    loader: CloudLoader,
    *,
    nodes: int = 1,
    node: int = 0,
    ranks_per_node: int = 1,
    shards: int | None = None,
    max_bytes: int | None = None,
    cache_limit: int | None = None,
    threads: int = 8,
    progress: bool = False,
) -> WarmReport:
    """Fetch the shards that a node reads first, starting at the loader's position.

    Assumes that all lanes advance at the same pace. Shards that are mapped in place are not
    fetched.

    Args:
        loader: a loader of the run, at the position from which the run starts or resumes. Its own
            rank and world have no effect, and it is not iterated.
        nodes: number of machines in the run.
        node: index of this machine, from 0.
        ranks_per_node: number of data-parallel ranks on each machine.
        shards: maximum number of shards. By default, all that the node reads in an epoch.
        max_bytes: maximum total size of the shards, in uncompressed bytes.
        cache_limit: the run's `cache_limit` in bytes. The shards stay within it.
        threads: number of concurrent downloads.
        progress: whether to show a progress bar on stderr.

    Raises:
        ValueError: for an invalid number, or a world that cannot share the lanes.
        StoreError, DatasetError, CacheError: as the loader does.
    """
    nodes = checks.as_integer("nodes", nodes, 1)
    ranks_per_node = checks.as_integer("ranks_per_node", ranks_per_node, 1)
    node = checks.as_integer("node", node, 0, nodes - 1)
    threads = checks.as_integer("threads", threads, 1)
    shards = None if shards is None else checks.as_integer("shards", shards, 0)
    max_bytes = None if max_bytes is None else checks.as_integer("max_bytes", max_bytes, 0)
    plan = loader.worker_plan()
    inputs, recipe = plan.inputs, plan.recipe
    world = World(node * ranks_per_node, nodes * ranks_per_node, ranks_per_node)
    check_world(recipe.num_lanes, world.size, has_lengths=inputs.lengths is not None)
    limits = [each for each in (max_bytes, cache_limit) if each is not None]
    own = share_rows([each.lanes for each in recipe.components], world).machine_lanes
    listed = _list_shards(inputs, plan.position, own)
    chosen, is_all = _choose(recipe.corpus, listed, shards, min(limits, default=None))
    traffic = _Downloads()
    fetcher = Fetcher(inputs.cache_root, cache_limit, plan.delivery.verify, traffic)
    size = _fetch(recipe.corpus, fetcher, chosen, threads, progress=progress)
    return WarmReport(
        shards=len(chosen),
        bytes=size,
        shards_downloaded=len(traffic.fetched),
        bytes_downloaded=traffic.take().bytes_downloaded,
        is_all=is_all,
    )


def _choose(
    corpus: Corpus, shards: Iterator[int], most_shards: int | None, most_bytes: int | None
) -> tuple[list[int], bool]:
    """Return those of `shards` to fetch, and whether they are all that the node reads."""
    chosen: list[int] = []
    size = 0
    for shard in shards:
        dataset, info = corpus.find_shard(shard)
        if is_in_place(dataset, info):
            continue
        size += info.raw.bytes
        if len(chosen) == most_shards or (most_bytes is not None and size > most_bytes):
            return chosen, False
        chosen.append(shard)
    return chosen, True


def _list_shards(inputs: RunInputs, position: Position, own: Ints) -> Iterator[int]:
    """Yield the shards that lanes read in the next epoch, each once, in order of use."""
    recipe, heads = inputs.recipe, position.cursors[:, :, tables.CURSOR_ORDINAL]
    is_known, components = np.zeros(len(recipe.corpus.shard_sizes), np.bool_), recipe.components
    for index in range(len(components)):
        lanes, ordinals = _list_residues(position, own, index)
        yield from _take_new(
            recipe.corpus.shards_of(_find_samples(inputs, index, lanes, ordinals)), is_known
        )
    longest = max(-(-each.lanes.stride // each.lanes.num_lanes) for each in components)
    for start in range(0, longest + 1, _ORDINALS_AT_ONCE):
        found = [
            _find_step(inputs, index, own, heads[index], start) for index in range(len(components))
        ]
        steps = np.concatenate([step for step, _ in found])
        shards = np.concatenate([part for _, part in found])
        yield from _take_new(shards[np.argsort(steps, kind="stable")], is_known)


def _take_new(shards: Ints, is_known: Flags) -> Iterator[int]:
    """Yield each new shard in order of first occurrence, and mark it in `is_known`."""
    for shard in dict.fromkeys(shards.tolist()):
        if not is_known[shard]:
            is_known[shard] = True
            yield shard


def _list_residues(position: Position, own: Ints, index: int) -> tuple[Ints, Ints]:
    """Return the lane and ordinal of each document in a residue: int64 [documents] each.

    A lane that resumes must read these documents again.
    """
    pairs = [
        (lane, ordinal)
        for lane in own.tolist()
        for ordinal, _, _ in residue_spans(
            position.residue(index, lane),
            int(position.cursors[index, lane, tables.CURSOR_ORDINAL]),
        )
    ]
    lanes, ordinals = np.array(pairs, np.int64).reshape(-1, 2).T
    return lanes, ordinals


def _find_step(
    inputs: RunInputs, index: int, own: Ints, heads: Ints, start: int
) -> tuple[Ints, Ints]:
    """Find up to 256 documents of each lane `own` of a component.

    They start `start` documents after the lane's cursor. `heads` (int64 [lanes]) are the ordinals
    of the cursors of all lanes. `index` is the component's index.

    Returns the documents' distances from the cursor, and their shards: int64 [documents] each.
    """
    component = inputs.recipe.components[index]
    of_epoch = -(-component.lanes.stride // component.lanes.num_lanes)
    steps = np.arange(start, min(start + _ORDINALS_AT_ONCE, of_epoch + 1))
    distances, lanes = (each.ravel() for each in np.meshgrid(steps, own, indexing="ij"))
    ordinals = heads[lanes] + distances
    epochs, positions = component.lanes.epoch_positions(lanes, ordinals)
    is_there = positions < component.lanes.num_positions
    if component.lanes.epochs is not None:
        is_there &= epochs < component.lanes.epochs
    samples = _find_samples(inputs, index, lanes[is_there], ordinals[is_there])
    distances, recipe = distances[is_there], inputs.recipe
    if recipe.selection is not None:
        is_read = recipe.selection.of(samples)
        distances, samples = distances[is_read], samples[is_read]
    return distances, recipe.corpus.shards_of(samples)


def _find_samples(inputs: RunInputs, index: int, lanes: Ints, ordinals: Ints) -> Ints:
    """Return the samples of a component's documents in the corpus: int64 [documents]."""
    component = inputs.recipe.components[index]
    epochs, positions = component.lanes.epoch_positions(lanes, ordinals)
    samples = component.orders(inputs.cache_root).samples_at(epochs, positions)
    return samples + component.first_sample


def _fetch(
    corpus: Corpus, fetcher: Fetcher, chosen: list[int], threads: int, *, progress: bool
) -> int:
    """Fetch shards concurrently. Returns their total size, in uncompressed bytes."""
    sizes = {shard: corpus.find_shard(shard)[1].raw.bytes for shard in chosen}

    def fetch(shard: int) -> int:
        fetcher.fetch(shard, *corpus.find_shard(shard))
        return sizes[shard]

    with open_progress_bar("fetch", sum(sizes.values()), shown=progress) as bar:
        for size in map_in_order(fetch, chosen, threads, "cloudload-fetch"):
            bar.update(size)
    return sum(sizes.values())


class _Downloads(TrafficCounter):
    """A counter of traffic that also lists the shards that were fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = set[str]()

    def count_fetch(self, url: str, size: int, seconds: float) -> None:
        """Record that a shard was fetched."""
        super().count_fetch(url, size, seconds)
        self.fetched.add(url)
