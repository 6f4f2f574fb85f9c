"""Lane arithmetic: the lane that reads a position of the canonical order, and when.

    canonical order, 11 documents    0 1 2 3 4 5 6 7 8 9 10            then the next epoch
    4 lanes                          lane 0: 0 4 8 · lane 1: 1 5 9 · lane 2: 2 6 10 · lane 3: 3 7
    row stream                       row g is row g // 4 of lane g % 4

A document's **ordinal** is its index within its lane, across all epochs, with holes counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cloudload.system import Ints


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

    def end(self, lane: int) -> int | None:
        """The first ordinal of a lane that is past all epochs; None for endless epochs."""
        if self.epochs is None:
            return None
        end = self.epochs * self.stride
        return max(0, -(-(end - int(self.first_positions[lane])) // self.num_lanes))

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
