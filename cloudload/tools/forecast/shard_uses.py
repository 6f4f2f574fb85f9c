"""Find when each node uses each shard: the first and last rows that read one of its documents.

    documents, one by one ─► rows, shards, nodes     `document_uses`
    shuffle blocks        ─► rows, shards, nodes
                               └─► (node, epoch, shard): first row, last row

For up to 2^24 documents, each document is listed, and the result is exact. For more, the order
determines the shuffle blocks in which a node reads a shard, and sampled cursors determine the rows
at which lanes reach those blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cloudload.order.seekable import SeekableOrder
from cloudload.rows.packing.tables import CURSOR_OFFSET, CURSOR_ORDINAL
from cloudload.system.arrays import NEVER, Flags, Ints
from cloudload.tools.forecast.document_uses import Part, list_documents, take_uses
from cloudload.tools.forecast.reading import Reading

_MOST_LISTED = 1 << 24
_MOST_CURSORS = 48


@dataclass(frozen=True)
class ShardUses:
    """Uses of shards by nodes. The arrays are int64 [uses]."""

    nodes: Ints
    """Index of the node, from 0."""
    epochs: Ints
    """Epoch of the shard's component, from 0."""
    shards: Ints
    """Index of the shard in the corpus."""
    first_rows: Ints
    """The first row that needs a document of the shard. If only read-ahead needs the shard, the row
    is at or past the end of the run."""
    last_rows: Ints
    """The last row that needs a document of the shard."""
    is_listed: bool
    """Whether documents were listed one by one. Otherwise, uses cover whole shuffle blocks."""

    def take(self, chosen: Flags | Ints) -> ShardUses:
        """Return only the chosen uses, by mask or index."""
        return ShardUses(
            self.nodes[chosen],
            self.epochs[chosen],
            self.shards[chosen],
            self.first_rows[chosen],
            self.last_rows[chosen],
            self.is_listed,
        )


class FoundUses(NamedTuple):
    """The shard uses of a run, without and with read-ahead."""

    needed: ShardUses
    """Uses by the rows of the run."""
    fetched: ShardUses
    """All needed uses, and the uses by rows and documents that are read or fetched ahead."""


def find_uses(reading: Reading) -> FoundUses:
    """Find all uses of a run. Raises `CacheError` if an order or a table cannot be built."""
    recipe = reading.recipe
    is_listed = int(reading.stops.sum()) <= _MOST_LISTED
    number = len(recipe.corpus.shard_sizes)
    needed: list[ShardUses] = []
    fetched: list[ShardUses] = []
    for place in range(len(recipe.components)):
        is_seekable = isinstance(reading.lengths.walkers[place].orders(0), SeekableOrder)
        list_uses = list_documents if is_listed or not is_seekable else _list_blocks
        is_listed &= list_uses is list_documents
        for part in list_uses(reading, place):
            uses = ShardUses(*part[:-1], is_listed)
            is_needed = (uses.first_rows < reading.num_rows) & (not part.is_ahead)
            own = uses.take(is_needed)
            own = replace(own, last_rows=np.minimum(own.last_rows, reading.num_rows - 1))
            # join parts as they arrive to save memory: a part has a use per document and row
            needed.append(_join([own], number))
            fetched.append(_join([uses], number))
    return FoundUses(_join(needed, number), _join(fetched, number))


def _join(parts: Sequence[ShardUses], num_shards: int) -> ShardUses:
    """Merge all uses of the same shard by the same node in the same epoch."""
    nodes, epochs, shards, firsts, lasts = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("nodes", "epochs", "shards", "first_rows", "last_rows")
    )
    num_epochs = int(epochs.max(initial=0)) + 1
    unique, places = np.unique(
        (nodes * num_epochs + epochs) * num_shards + shards, return_inverse=True
    )
    first, last = np.full(len(unique), NEVER), np.full(len(unique), -1)
    np.minimum.at(first, places, firsts)
    np.maximum.at(last, places, lasts)
    rest, shards = np.divmod(unique, num_shards)
    nodes, epochs = np.divmod(rest, num_epochs)
    return ShardUses(nodes, epochs, shards, first, last, all(part.is_listed for part in parts))


# ---------------------------------------------------------------- shuffle blocks


def _list_blocks(reading: Reading, place: int) -> Iterator[Part]:
    """Yield a component's uses, epoch by epoch, from the shuffle blocks of its order."""
    lengths, component = reading.lengths, reading.recipe.components[place]
    lanes, num_nodes = component.lanes, component.lanes.num_nodes
    rows, cursors = _sample_cursors(reading, place)
    first_shard = int(reading.corpus.shards_of(np.array([component.first_sample]))[0])
    last_epoch = int(lanes.epoch_positions(np.arange(lanes.num_lanes), cursors[-1])[0].max())
    num_epochs = min(last_epoch + 1, NEVER if lanes.epochs is None else lanes.epochs)
    for epoch in range(num_epochs):
        order = lengths.walkers[place].orders(epoch)
        assert isinstance(order, SeekableOrder)
        uses = order.uses()
        for lane in range(lanes.num_lanes):
            first = int(lanes.first_positions[lane])
            own = np.flatnonzero(uses.nodes == first % num_nodes)
            begins, ends = (
                -(-(epoch * lanes.stride + rounds[own] * num_nodes - first) // lanes.num_lanes)
                for rounds in (uses.first_rounds, uses.stop_rounds)
            )
            own, begins, ends = (each[ends > begins] for each in (own, begins, ends))
            firsts, lasts = (np.interp(each, cursors[:, lane], rows) for each in (begins, ends))
            is_read = begins < cursors[-1, lane] + reading.documents_ahead[place]
            part = Part(
                np.full(len(own), reading.world.node_of_lane[lane]),
                np.full(len(own), epoch),
                uses.shards[own] + first_shard,
                firsts.astype(np.int64),
                lasts.astype(np.int64),
            )
            yield take_uses(part, is_read)
            if (tail_start := reading.tail_starts[place]) < reading.num_rows:
                tail = take_uses(part, is_read & (lasts > tail_start))
                firsts_of_tail = np.maximum(tail.first_rows, tail_start)
                # rows of a tail have documents of any lane, so every node reads the tail's shards
                for node in range(reading.world.num_nodes):
                    nodes = np.full_like(tail.nodes, node)
                    yield tail._replace(nodes=nodes, first_rows=firsts_of_tail)


def _sample_cursors(reading: Reading, place: int) -> tuple[Ints, Ints]:
    """Sample rows of the run, and count the documents that each lane starts before them.

    Returns the rows, int64 [rows], and the numbers of documents, int64 [rows, lanes].
    """
    tail_start, end = min(reading.tail_starts[place], reading.last_row), reading.last_row
    if reading.recipe.has_stream_ends:
        end = min(end, reading.lengths.find_tails(reading.start).ending.stream_ends[place])
    wanted = np.concatenate(
        [
            np.linspace(0, reading.num_rows, _MOST_CURSORS),
            np.linspace(reading.num_rows, reading.last_row, _MOST_CURSORS),
            [tail_start],
        ]
    ).astype(np.int64)
    known: dict[int, Ints] = {}
    for row in np.unique(wanted[wanted <= tail_start]).tolist():
        if (cursors := reading.find(row)) is not None:
            known[row] = cursors[place, :, CURSOR_ORDINAL] + (cursors[place, :, CURSOR_OFFSET] > 0)
    known.setdefault(end, reading.stops[place])
    return np.array(list(known)), np.stack(list(known.values()))
