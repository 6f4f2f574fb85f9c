"""The lanes of a run: how many there are, and which lane reads a position, and when.

    canonical order, 11 documents    0 1 2 3 4 5 6 7 8 9 10            then the next epoch
    4 lanes                          lane 0: 0 4 8 · lane 1: 1 5 9 · lane 2: 2 6 10 · lane 3: 3 7
    row stream                       row g is row g // 4 of lane g % 4

A document's **ordinal** is its index within its lane, across all epochs, with holes counted.

The layout is the number of lanes, and the canonical nodes and shuffle blocks of the order:

    from the config, else from the saved layout, else from the data:
        30,000 documents, 40 shards   ─►   240 lanes, 8 canonical nodes, blocks of 3,000 documents

The world size is not an input, so a fresh start reads the same rows at any world size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.config import RowsConfig
from cloudload.system import NEVER, Ints, divisors

# default numbers of lanes, which many world sizes divide. 3840 = 2^8·3·5 is divisible by every
# power of two up to 256, and by 3, 5 and 15 times these
_LANE_LADDER = (3840, 1920, 960, 480, 240, 120, 60)
_FEWEST_LANES = 12
_MOST_CANONICAL_NODES = 64
_SHARDS_PER_NODE = 32
_SHARDS_PER_BLOCK = 4


@dataclass(frozen=True)
class Lanes:
    """The division of all epochs' positions among lanes."""

    num_lanes: int
    num_positions: int
    """Number of documents in an epoch."""
    epochs: int | None
    """Number of passes over the documents; None if endless."""
    num_nodes: int = 1
    """Number of canonical nodes of the order."""

    @cached_property
    def first_positions(self) -> Ints:
        """The first position of each lane: int64 [num_lanes].

        Lane `l` reads every `num_lanes`-th position, starting at `first_positions[l]`. These
        positions belong to one canonical node, except perhaps at the end of an epoch, or with fewer
        documents than lanes.

        A machine should read consecutive nodes, because neighboring nodes may share the shard at
        their border. If P machines have equally many ranks, machine `m` reads the lanes `l` with
        `l % P == m`. Example: with 2 machines and 4 nodes, lanes 0 and 2 read nodes 0 and 1. If the
        number of nodes is a power of 2, a machine's nodes are consecutive for every P that divides
        it. Otherwise, they may be consecutive only for some P.
        """
        lanes = np.arange(self.num_lanes)
        nodes = lanes % self.num_nodes
        first_positions: Ints = lanes - nodes + _reverse_digits(self.num_nodes)[nodes]
        return first_positions

    @property
    def stride(self) -> int:
        """The number of positions from the start of one epoch to the start of the next.

        This is the number of documents, rounded up to a multiple of the number of lanes so that a
        lane starts every epoch in the same canonical node. It is not rounded if there are fewer
        documents than lanes, because otherwise some lanes would never get a document.
        """
        if self.num_positions < self.num_lanes:
            return self.num_positions
        return -(-self.num_positions // self.num_lanes) * self.num_lanes

    def epoch_position(self, lane: int, ordinal: int) -> tuple[int, int]:
        """The (epoch, position) of the document with this ordinal in a lane.

        A position of `num_positions` or more is a hole: the lane has no document there.
        """
        return divmod(ordinal * self.num_lanes + int(self.first_positions[lane]), self.stride)

    def epoch_positions(self, lanes: Ints, ordinals: Ints) -> tuple[Ints, Ints]:
        """`epoch_position` for many documents: (epochs, positions).

        Arguments and results are int64 [documents].
        """
        epochs, positions = np.divmod(
            ordinals * self.num_lanes + self.first_positions[lanes], self.stride
        )
        return epochs, positions

    @property
    def ends(self) -> Ints:
        """Each lane's first ordinal past all epochs: int64 [num_lanes]; `NEVER` if endless."""
        if self.epochs is None:
            return np.full(self.num_lanes, NEVER)
        return self.ordinals_after(self.epochs, 0)

    def ordinals_after(self, epoch: int, count: int) -> Ints:
        """Each lane's ordinal after the first `count` positions of `epoch`: int64 [num_lanes].

        All earlier epochs count as read.
        """
        position = epoch * self.stride + count
        return np.maximum(0, -(-(position - self.first_positions) // self.num_lanes))

    @property
    def nodes(self) -> Ints:
        """The canonical node that each lane reads: int64 [num_lanes]."""
        return self.first_positions % self.num_nodes


def _reverse_digits(count: int) -> Ints:
    """0, 1, … `count` - 1, each with its digits reversed: int64 [count]. For 4: 0 2 1 3.

    The digits have mixed bases, the prime factors of `count`.
    """
    numbers, reversed_numbers = np.arange(count), np.zeros(count, np.int64)
    # the lowest digit of a number has the highest weight in the result
    weight = rest = count
    for base in range(2, count + 1):
        while rest % base == 0:
            rest //= base
            weight //= base
            reversed_numbers += numbers % base * weight
            numbers = numbers // base
    return reversed_numbers


# ---------------------------------------------------------------- layout


@dataclass(frozen=True)
class Layout:
    """The number of lanes, and the canonical nodes and shuffle block of each component."""

    num_lanes: int
    canonical_nodes: tuple[int, ...]
    """Number of canonical nodes in each component's order."""
    shuffle_block_sizes: tuple[int, ...]
    """Number of documents in a shuffle block of each component."""


def resolve_layout(
    config: RowsConfig,
    sizes: Sequence[tuple[int, int]],
    saved: Layout | None = None,
    num_read: int | None = None,
) -> Layout:
    """Choose the layout values that `config` leaves open.

    `sizes` holds (documents in an epoch, shards) for each component. If some of the documents are
    not selected, `num_read` of them are read, on which the number of lanes depends. On resume, the
    `saved` layout replaces these defaults for the components that it has:

    - Lanes: the largest of 3840, 1920, … 60 for which all components together have at least
      `min(256, max(16, lanes // 4))` documents per lane. With less data, 12. If `config` sets the
      number of canonical nodes, only multiples of that number are tried. With less data, the
      number of lanes is then the least common multiple of it and 12.
    - Canonical nodes: the largest of 64, 32, … 2 that divides the lanes and leaves each node at
      least 32 shards and one document; otherwise 1. Each node opens a shuffle window at once, so
      with fewer shards per node, the first batch would wait for a large part of a small dataset.
    - Shuffle block: the mean number of documents in 4 shards, at least 2.

    If `config` sets more canonical nodes than a component has documents, that component gets the
    largest divisor of this number that does not exceed its number of documents. Raises `ValueError`
    if `config` sets more canonical nodes than an epoch of all components has documents.
    """
    nodes = config.num_canonical_nodes
    documents = sum(samples for samples, _ in sizes)
    if nodes is not None and nodes > documents:
        raise ValueError(
            f"num_canonical_nodes is {nodes}, but an epoch has only {documents} documents. Use "
            f"{documents} or fewer"
        )
    lanes = config.num_lanes or (
        saved.num_lanes
        if saved
        else _default_lanes(documents if num_read is None else num_read, nodes or 1)
    )
    canonical_nodes, block_sizes = [], []
    for index, (samples, shards) in enumerate(sizes):
        known = saved if saved and index < len(saved.canonical_nodes) else None
        if nodes is not None:
            canonical_nodes.append(max(fewer for fewer in divisors(nodes) if fewer <= samples))
        elif known:
            canonical_nodes.append(known.canonical_nodes[index])
        else:
            canonical_nodes.append(_default_canonical_nodes(lanes, samples, shards))
        block = config.shuffle_block_size or (known.shuffle_block_sizes[index] if known else 0)
        block_sizes.append(block or max(2, _SHARDS_PER_BLOCK * samples // shards))
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
