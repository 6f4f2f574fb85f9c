"""The layout of a run: its lanes, canonical nodes and shuffle blocks.

    from the config, else from the saved layout, else from the data:
        30,000 documents, 40 shards   ─►   240 lanes, 8 canonical nodes, blocks of 3,000 documents

The world size is not an input, so a fresh start reads the same rows at any world size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cloudload.config import RowsConfig
from cloudload.system import divisors

# default numbers of lanes, which many world sizes divide. 3840 = 2^8·3·5 is divisible by every
# power of two up to 256, and by 3, 5 and 15 times these
_LANE_LADDER = (3840, 1920, 960, 480, 240, 120, 60)
_FEWEST_LANES = 12
_MOST_CANONICAL_NODES = 64
_SHARDS_PER_NODE = 32
_SHARDS_PER_BLOCK = 4


@dataclass(frozen=True)
class Layout:
    """The number of lanes, and the canonical nodes and shuffle block of each component."""

    num_lanes: int
    canonical_nodes: tuple[int, ...]
    """Number of canonical nodes in each component's order."""
    shuffle_block_sizes: tuple[int, ...]
    """Number of documents in a shuffle block of each component."""


def resolve_layout(
    config: RowsConfig, sizes: Sequence[tuple[int, int]], saved: Layout | None = None
) -> Layout:
    """Choose the layout values that `config` leaves open.

    `sizes` holds (documents in an epoch, shards) for each component. On resume, the `saved` layout
    replaces these defaults for the components that it has:

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
        saved.num_lanes if saved else _default_lanes(documents, nodes or 1)
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
