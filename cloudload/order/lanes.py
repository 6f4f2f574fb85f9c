"""Integers only: which lane reads what, and which rank and worker serve which lane.

    canonical order, 11 documents       0 1 2 3 4 5 6 7 8 9 10
    4 lanes                             lane 0: 0 4 8 · lane 1: 1 5 9 · lane 2: 2 6 10 · lane 3: 3 7     then the next epoch
    row stream                          row g is row g // 4 of lane g % 4
    2 ranks                             rank 0: lanes 0 2 · rank 1: lanes 1 3

A lane counts its documents by **ordinal** through all epochs. Nothing here but `World` knows of
ranks, and nothing that it says changes what a row holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.arrays import Ints, divisors
from cloudload.config import RowsConfig

# 2^8·3·5 divides by every world size that is common up to 3,840 ranks
_LANE_LADDER = (3840, 1920, 960, 480, 240, 120, 60)

_FEWEST_LANES = 12

_MOST_CANONICAL_NODES = 64

_SHARDS_PER_NODE = 4

_SHARDS_PER_WINDOW = 4


@dataclass(frozen=True)
class Layout:
    """What a run takes for its lanes, and each order of it for its shuffle."""

    num_lanes: int
    canonical_nodes: tuple[int, ...]
    shuffle_block_sizes: tuple[int, ...]


def resolve(
    config: RowsConfig, sizes: Sequence[tuple[int, int]], saved: Layout | None = None
) -> Layout:
    """What `config` leaves open, from the data (documents and shards of each order) and the config
    alone, never from the world.

    Lanes: the most of 3840, 1920, … 60 that leave a lane `lanes / 4` documents (16 at least, 256 at
    most); 12 for less data. Canonical nodes: the most of 64, 32, … that divide the lanes and leave
    4 shards a node. Shuffle block: 4 shards of documents. Where a run goes on, what it took before
    counts in place of these.
    """
    nodes = config.num_canonical_nodes
    documents = sum(samples for samples, _ in sizes)
    if nodes is not None and nodes > documents:
        raise ValueError(
            f"num_canonical_nodes {nodes} is more than the {documents} "
            f"documents. Use {documents} or fewer"
        )
    lanes = config.num_lanes or (
        saved.num_lanes if saved else _default_lanes(documents, nodes or 1)
    )
    canonical_nodes, block_sizes = [], []
    for place, (samples, shards) in enumerate(sizes):
        known = saved if saved and place < len(saved.canonical_nodes) else None
        if nodes is not None:
            canonical_nodes.append(max(fewer for fewer in divisors(nodes) if fewer <= samples))
        else:
            canonical_nodes.append(
                known.canonical_nodes[place]
                if known
                else _default_canonical_nodes(lanes, samples, shards)
            )
        block = config.shuffle_block_size or (known.shuffle_block_sizes[place] if known else 0)
        block_sizes.append(block or max(2, _SHARDS_PER_WINDOW * samples // shards))
    return Layout(lanes, tuple(canonical_nodes), tuple(block_sizes))


def _default_lanes(num_samples: int, nodes: int) -> int:
    for lanes in _LANE_LADDER:
        if lanes % nodes == 0 and lanes * min(256, max(16, lanes // 4)) <= num_samples:
            return lanes
    return math.lcm(_FEWEST_LANES, nodes)


def _default_canonical_nodes(lanes: int, num_samples: int, num_shards: int) -> int:
    nodes = _MOST_CANONICAL_NODES
    while nodes > 1 and (
        lanes % nodes or nodes * _SHARDS_PER_NODE > num_shards or nodes > num_samples
    ):
        nodes //= 2
    return nodes


# ---------------------------------------------------------------- lanes and documents


@dataclass(frozen=True)
class Lanes:
    """How the positions of all epochs fall to lanes."""

    num_lanes: int
    num_positions: int
    epochs: int | None
    num_nodes: int = 1
    """Canonical nodes of the order."""

    @cached_property
    def residues(self) -> Ints:
        """int64 [num_lanes]: lane `l` reads the positions congruent to `residues[l]` modulo
        `num_lanes`.

        A lane keeps to one canonical node. The lanes of one of P machines, those congruent modulo
        P, have canonical nodes that follow each other, for at a border between nodes a shard falls
        to both: with 2 machines and 4 nodes, lanes 0 and 2 have nodes 0 and 1. So it is for every P
        where the nodes are a power of 2, and else for some.
        """
        lanes = np.arange(self.num_lanes)
        residues: Ints = (
            lanes - lanes % self.num_nodes + _reverse_digits(self.num_nodes)[lanes % self.num_nodes]
        )
        return residues

    @property
    def stride(self) -> int:
        """Positions from one epoch's start to the next's. Rounded up to whole lanes, so that a lane
        keeps to its canonical node; not for fewer documents than lanes, where some lanes would
        never have a document."""
        if self.num_positions < self.num_lanes:
            return self.num_positions
        return -(-self.num_positions // self.num_lanes) * self.num_lanes

    def place(self, lane: int, ordinal: int) -> tuple[int, int]:
        """(epoch, position) of a lane's document; a position of `num_positions` or more is a hole
        at the epoch's end."""
        return divmod(ordinal * self.num_lanes + int(self.residues[lane]), self.stride)

    def places(self, lanes: Ints, ordinals: Ints) -> tuple[Ints, Ints]:
        """(epochs, positions) of many documents, as `place` has them."""
        epochs, positions = np.divmod(ordinals * self.num_lanes + self.residues[lanes], self.stride)
        return epochs, positions

    def end(self, lane: int) -> int | None:
        """The ordinal at which a lane has read all epochs; None where epochs are endless."""
        if self.epochs is None:
            return None
        return max(0, -(-(self.epochs * self.stride - int(self.residues[lane])) // self.num_lanes))

    def hosts_of_nodes(self, num_hosts: int) -> Ints:
        """Which of some machines has each canonical node: int64 [num_nodes]; their number divides
        that of the nodes."""
        hosts = np.empty(self.num_nodes, np.int64)
        hosts[self.residues[: self.num_nodes]] = np.arange(self.num_nodes) % num_hosts
        return hosts


def _reverse_digits(number: int) -> Ints:
    """0, 1, … below `number` with the order of their digits turned round; the bases are its prime
    factors."""
    numbers, reversed_numbers, place, rest = (
        np.arange(number),
        np.zeros(number, np.int64),
        number,
        number,
    )
    for base in range(2, number + 1):
        while rest % base == 0:
            rest //= base
            place //= base
            reversed_numbers += numbers % base * place
            numbers = numbers // base
    return reversed_numbers


def rank_rows(start: int, stop: int, index: int, world_size: int) -> range:
    """The rows of `start ≤ row < stop` that the rank of virtual index `index` computes;
    `world_size` divides the lanes."""
    return range(start + (index - start) % world_size, stop, world_size)


def worker_of_rows(rows: range, num_lanes: int, world_size: int, num_workers: int) -> Ints:
    """Which worker of its rank computes each row: a rank's lanes go round its workers."""
    return (np.asarray(rows, np.int64) % num_lanes) // world_size % num_workers
