"""Find when each node uses each shard: the first and last rows that read one of its documents.

    documents, one by one ─► rows, shards, nodes     `_list_documents`
    shuffle blocks        ─► rows, shards, nodes
                               └─► (node, epoch, shard): first row, last row

For up to 2^24 documents, each document is listed, and the result is exact. For more, the order
determines the shuffle blocks in which a node reads a shard, and sampled cursors determine the rows
at which lanes reach those blocks. Documents are listed with their shards and rows:

    rows ─► pieces ─► documents ─► order ─► shard, in an epoch; world ─► node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cloudload.order import Lanes, SeekableOrder
from cloudload.rows import tables
from cloudload.system import NEVER, Flags, Ints
from cloudload.tools.forecast.node_reads import NodeReads, find_nodes

_MOST_LISTED = 1 << 24
_MOST_CURSORS = 48

_DOCUMENTS_AT_ONCE = 1 << 18


class ShardUses(NamedTuple):
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

    def take(self, chosen: Flags | Ints) -> ShardUses:
        """Return only the chosen uses, by mask or index."""
        return ShardUses(*(column[chosen] for column in self))


Parts = Iterator[tuple[ShardUses, bool]]
"""Chunks of uses, and whether their shards are only fetched ahead, because no row needs them."""


class FoundUses(NamedTuple):
    """The shard uses of a run, without and with read-ahead."""

    needed: ShardUses
    """Uses by the rows of the run."""
    fetched: ShardUses
    """All needed uses, and the uses by rows and documents that are read or fetched ahead."""
    is_listed: bool
    """Whether documents were listed one by one. Otherwise, uses cover whole shuffle blocks."""


def find_uses(reading: NodeReads) -> FoundUses:
    """Find all uses of a run. Raises `CacheError` if an order or a table cannot be built."""
    recipe = reading.recipe
    is_listed = int(reading.stops.sum()) <= _MOST_LISTED
    num_shards = len(recipe.corpus.shard_sizes)
    needed: list[ShardUses] = []
    fetched: list[ShardUses] = []
    for index in range(len(recipe.components)):
        is_seekable = isinstance(reading.lengths.sizes[index].orders(0), SeekableOrder)
        list_uses = _list_documents if is_listed or not is_seekable else _list_blocks
        is_listed &= list_uses is _list_documents
        for found, is_ahead in list_uses(reading, index):
            uses = found.take(recipe.read_of_shards[found.shards] > 0)
            own = uses.take((uses.first_rows < reading.num_rows) & (not is_ahead))
            own = own._replace(last_rows=np.minimum(own.last_rows, reading.num_rows - 1))
            # join parts as they arrive to save memory: a part has a use per document and row
            needed.append(_join([own], num_shards))
            fetched.append(_join([uses], num_shards))
    return FoundUses(_join(needed, num_shards), _join(fetched, num_shards), is_listed)


def _join(parts: Sequence[ShardUses], num_shards: int) -> ShardUses:
    """Merge all uses of the same shard by the same node in the same epoch."""
    nodes, epochs, shards, firsts, lasts = map(np.concatenate, zip(*parts, strict=True))
    num_epochs = int(epochs.max(initial=0)) + 1
    unique, indices = np.unique(
        (nodes * num_epochs + epochs) * num_shards + shards, return_inverse=True
    )
    first, last = np.full(len(unique), NEVER), np.full(len(unique), -1)
    np.minimum.at(first, indices, firsts)
    np.maximum.at(last, indices, lasts)
    rest, shards = np.divmod(unique, num_shards)
    nodes, epochs = np.divmod(rest, num_epochs)
    return ShardUses(nodes, epochs, shards, first, last)


# ---------------------------------------------------------------- shuffle blocks


def _list_blocks(reading: NodeReads, index: int) -> Parts:
    """Yield a component's uses, epoch by epoch, from the shuffle blocks of its order."""
    component = reading.recipe.components[index]
    lanes, lane_hosts = component.lanes, reading.share.lane_hosts
    # a lane's row at any ordinal is estimated from these samples
    rows, cursors = _sample_cursors(reading, index)
    first_shard = int(reading.corpus.shards_of(np.array([component.first_sample]))[0])
    for epoch in range(_count_epochs(lanes, cursors[-1])):
        order = reading.lengths.sizes[index].orders(epoch)
        assert isinstance(order, SeekableOrder)
        uses = order.uses()
        for lane in range(lanes.num_lanes):
            # a lane reads documents of one canonical node only
            own = np.flatnonzero(uses.nodes == lanes.first_positions[lane] % lanes.num_nodes)
            begins, ends = (
                _ordinals_at(lanes, lane, epoch, rounds[own])
                for rounds in (uses.first_rounds, uses.stop_rounds)
            )
            own, begins, ends = (each[ends > begins] for each in (own, begins, ends))
            # the lane's row at an ordinal, between the rows at which its cursor was computed
            firsts, lasts = (np.interp(each, cursors[:, lane], rows) for each in (begins, ends))
            # prefetching reaches beyond the lane's last document in the run
            is_read = begins < cursors[-1, lane] + reading.documents_ahead[index]
            uses_of_lane = ShardUses(
                np.full(len(own), lane_hosts[lane]),
                np.full(len(own), epoch),
                uses.shards[own] + first_shard,
                firsts.astype(np.int64),
                lasts.astype(np.int64),
            )
            yield uses_of_lane.take(is_read), False
            if (tail_start := reading.tail_starts[index]) < reading.num_rows:
                uses_of_lane = uses_of_lane.take(is_read & (lasts > tail_start))
                yield from _share_tail(uses_of_lane, tail_start, int(lane_hosts.max()) + 1)


def _count_epochs(lanes: Lanes, heads: Ints) -> int:
    """The number of epochs that any lane has begun at ordinals `heads`, int64 [lanes]."""
    last = int(lanes.epoch_positions(np.arange(lanes.num_lanes), heads)[0].max())
    return min(last + 1, NEVER if lanes.epochs is None else lanes.epochs)


def _ordinals_at(lanes: Lanes, lane: int, epoch: int, rounds: Ints) -> Ints:
    """A lane's first ordinal at or after the start of each round of an epoch: int64 [rounds]."""
    # a round has one document of each node, so it is `num_nodes` positions of the order
    positions = epoch * lanes.stride + rounds * lanes.num_nodes
    ordinals: Ints = -(-(positions - int(lanes.first_positions[lane])) // lanes.num_lanes)
    return ordinals


def _share_tail(tail: ShardUses, tail_start: int, num_nodes: int) -> Parts:
    """Yield each node's uses in a tail, whose rows have documents of any lane."""
    firsts = np.maximum(tail.first_rows, tail_start)
    for node in range(num_nodes):
        yield tail._replace(nodes=np.full_like(tail.nodes, node), first_rows=firsts), False


def _sample_cursors(reading: NodeReads, index: int) -> tuple[Ints, Ints]:
    """Sample rows of the run, and count the documents that each lane starts before them.

    Returns the rows, int64 [rows], and the numbers of documents, int64 [rows, lanes].
    """
    tail_start, end = min(reading.tail_starts[index], reading.last_row), reading.last_row
    if reading.recipe.has_tails:
        end = min(end, reading.lengths.find_tails(reading.start).ending.stream_ends[index])
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
            known[row] = cursors[index, :, tables.CURSOR_ORDINAL] + (
                cursors[index, :, tables.CURSOR_OFFSET] > 0
            )
    known.setdefault(end, reading.stops[index])
    return np.array(list(known)), np.stack(list(known.values()))


# ---------------------------------------------------------------- documents


def _list_documents(reading: NodeReads, index: int) -> Parts:
    """Yield a component's uses of shards, in chunks of documents.

    Raises `CacheError` if an order or a table cannot be built.
    """
    find, tail_start = _ShardFinder(reading, index), reading.tail_starts[index]
    stops = _find_stops(reading, index)
    firsts = np.full((int(stops.max(initial=0)), len(stops)), NEVER)
    for lanes, ordinals, rows in _list_pieces(reading, index, 0, tail_start):
        np.minimum.at(firsts, (ordinals, lanes), rows)
        yield from find.list_uses(lanes, ordinals, rows)
    yield from _list_others(reading, index, find, firsts)
    if not reading.reaches_tail(index):
        return
    for lanes, ordinals, rows in _list_pieces(reading, index, tail_start, NEVER):
        # the owner of a lane reads its documents for all nodes, unless rows are dealt to them
        is_shared = reading.share.is_even and not reading.recipe.config.is_mixed
        yield find.find(lanes, ordinals, rows, lanes if is_shared else rows % len(stops)), False
    # with token lengths, nodes may fetch all that is left in lanes, but do not need it
    lanes, ordinals = reading.list_remnants(index)
    starts = np.full(len(lanes), tail_start)
    yield from find.list_uses(lanes, ordinals, starts, is_ahead=not reading.measures_rest)


def _list_pieces(
    reading: NodeReads, index: int, start: int, stop: int
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the lane, the ordinal, and the row of each piece of a component's rows [start, stop).

    They are int64 [pieces] each. Rows from `last_row` on are omitted.
    """
    stop = min(stop, reading.last_row)
    step = max(1, _DOCUMENTS_AT_ONCE * reading.last_row // max(1, int(reading.stops.sum())))
    for first in range(start, stop, step):
        rows = np.arange(first, min(stop, first + step))
        rows = rows[reading.recipe.components_of(rows) == index]
        pieces = reading.finder.find(rows)
        lanes, ordinals = tables.split_keys(pieces[:, tables.PIECE_DOCUMENT])
        yield lanes % reading.recipe.num_lanes, ordinals, rows[pieces[:, tables.PIECE_ROW]]


def _find_stops(reading: NodeReads, index: int) -> Ints:
    """Return the ordinal after the last document that each lane may fetch: int64 [lanes]."""
    stops = reading.stops[index] + reading.documents_ahead[index]
    return np.minimum(stops, reading.recipe.components[index].lanes.ends)


def _list_others(reading: NodeReads, index: int, find: _ShardFinder, firsts: Ints) -> Parts:
    """Yield the uses of documents that are in no row before the tail.

    `firsts` is the first row of each document, or `NEVER`: int64 [ordinals, lanes].
    """
    # once the tail has begun, the documents that are in no row are in the tail
    is_over = reading.tail_starts[index] <= reading.num_rows
    # a lane reads a document without tokens just before the next document, for the same row
    later = np.minimum.accumulate(firsts[::-1])[::-1]
    stops, walker = _find_stops(reading, index), reading.lengths.walkers[index]
    step = max(1, _DOCUMENTS_AT_ONCE // len(stops))
    for start in range(0, len(firsts), step):
        own = firsts[start : start + step]
        is_left = (own == NEVER) & (np.arange(start, start + len(own))[:, None] < stops)
        ordinals, lanes = np.nonzero(is_left)
        ordinals += start
        found, rows = walker.sizes.measure(lanes, ordinals), later[ordinals, lanes]
        is_there = found.sizes != tables.Size.ABSENT
        is_passed = is_there & (found.tokens == 0) & (rows < NEVER)
        # a rank that makes rows of other ranks' lanes never reads their documents without tokens
        yield from find.list_uses(
            lanes[is_passed],
            ordinals[is_passed],
            rows[is_passed],
            is_ahead=not reading.share.has_whole_lanes,
        )
        if not is_over:
            is_ahead = is_there & ~is_passed
            ahead = np.full(int(is_ahead.sum()), min(reading.last_row, reading.end))
            yield from find.list_uses(lanes[is_ahead], ordinals[is_ahead], ahead, is_ahead=True)


class _ShardFinder:
    """Finds the shards of a component's documents, and the nodes that fetch them."""

    def __init__(self, reading: NodeReads, index: int) -> None:
        self._component = reading.recipe.components[index]
        self._orders = reading.lengths.sizes[index].orders
        self._corpus, self._selection = reading.corpus, reading.recipe.selection
        self._share, self._sharers = reading.share, reading.sharers
        self._num_rows = reading.num_rows

    def list_uses(
        self, lanes: Ints, ordinals: Ints, rows: Ints, *, is_ahead: bool = False
    ) -> Parts:
        """Yield the uses of documents, given their lanes, ordinals, and rows in the run.

        If several nodes make rows of a lane, each of them may fetch all of the lane's documents.
        """
        if self._selection is not None:
            _, samples = self._component.find_samples(self._orders, lanes, ordinals)
            is_read = self._selection.of(samples)
            lanes, ordinals, rows = (each[is_read] for each in (lanes, ordinals, rows))
        found = self.find(lanes, ordinals, rows, lanes)
        if self._sharers is None:
            yield found, is_ahead
            return
        if not is_ahead:
            yield found.take(rows < self._num_rows), False
        uses, nodes = np.nonzero(self._sharers[lanes])
        yield found.take(uses)._replace(nodes=nodes), True

    def find(self, lanes: Ints, ordinals: Ints, rows: Ints, row_lanes: Ints) -> ShardUses:
        """Return the uses of documents in rows of the run. `row_lanes` are the rows' lanes."""
        epochs, samples = self._component.find_samples(self._orders, lanes, ordinals)
        return ShardUses(
            find_nodes(self._share, row_lanes, rows),
            epochs,
            self._corpus.shards_of(samples),
            rows,
            rows,
        )
