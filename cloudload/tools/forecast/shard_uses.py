"""Find when each node uses each shard: the first and last rows that read one of its documents.

    documents, one by one ─► rows, shards, nodes     `list_documents`
    shuffle blocks        ─► rows, shards, nodes
                               └─► (node, epoch, shard): first row, last row

For up to 2^24 documents, each document is listed, and the result is exact. For more, the order
determines the shuffle blocks in which a node reads a shard, and sampled cursors determine the rows
at which lanes reach those blocks. Documents are listed with their shards and rows:

    lanes, ordinals ─► units in the lane before each document ─► its rows concat, one_per_row
    rows of lanes   ─► played lanes ─► pieces ─► documents                    best_fit
    tails           ─► remnants ─► documents
                                      └─► order ─► shard, in an epoch; world ─► node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cloudload.order import Lanes, SeekableOrder, mixture_counts
from cloudload.rows import tables
from cloudload.run import BestFitRows, BestFitWalker, units_of
from cloudload.system import NEVER, Flags, Ints, count_within
from cloudload.tools.forecast.node_reads import NodeReads, find_nodes, list_ends

_MOST_LISTED = 1 << 24
_MOST_CURSORS = 48

_DOCUMENTS_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 16


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
        is_seekable = isinstance(reading.lengths.walkers[index].orders(0), SeekableOrder)
        list_uses = list_documents if is_listed or not is_seekable else _list_blocks
        is_listed &= list_uses is list_documents
        for uses, is_ahead in list_uses(reading, index):
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
        order = reading.lengths.walkers[index].orders(epoch)
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


def list_documents(reading: NodeReads, index: int) -> Parts:
    """Yield a component's uses of shards, in chunks of documents.

    Raises `CacheError` if an order or a table cannot be built.
    """
    find = _ShardFinder(reading, index)
    is_played = isinstance(reading.lengths.walkers[index], BestFitWalker)
    list_lanes = _list_played if is_played else _list_cut
    yield from list_lanes(reading, index, find)
    yield from _list_tail(reading, index, find)


def _find_stops(reading: NodeReads, index: int) -> Ints:
    """Return the ordinal after the last document that each lane may fetch: int64 [lanes]."""
    stops = reading.stops[index] + reading.documents_ahead[index]
    return np.minimum(stops, list_ends(reading.recipe.components[index]))


def _share_ordinals(stops: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield lanes and their ordinals before `stops` (int64 [lanes]), in chunks of ordinals.

    Both are int64 [ordinals, lanes]. Some ordinals of a lane may be at or after its stop.
    """
    num_lanes, end = len(stops), int(stops.max(initial=0))
    step = max(1, _DOCUMENTS_AT_ONCE // num_lanes)
    for start in range(0, end, step):
        shape = (min(end, start + step) - start, num_lanes)
        ordinals = np.arange(start, start + shape[0])[:, None]
        yield np.broadcast_to(np.arange(num_lanes), shape), np.broadcast_to(ordinals, shape)


def _list_cut(reading: NodeReads, index: int, find: _ShardFinder) -> Parts:
    """Yield the uses of `concat` or `one_per_row` lanes. A row has `units_of_row` units."""
    lengths, stops = reading.lengths, _find_stops(reading, index)
    tail_start = reading.tail_starts[index]
    rows = _LaneRows(reading, index, min(reading.last_row, tail_start))
    before = np.zeros(len(stops), np.int64)
    for lanes, ordinals in _share_ordinals(stops):
        # where each document begins and ends in its lane, in units since the start
        found = lengths.walkers[index].measure(lanes, ordinals)
        units = units_of(reading.recipe.packing, found.tokens)
        ends = before + np.cumsum(units, axis=0)
        before = ends[-1]
        is_read = (ordinals < stops) & (found.sizes != tables.Size.ABSENT)
        for chosen, is_ahead in find.split(is_read, found.tokens):
            of, in_lane = _list_rows(
                (ends - units)[chosen], ends[chosen], lengths.recipe.packing.row_units
            )
            in_rows = rows.at(lanes[chosen][of], in_lane)
            # rows from the start of the tail on are made of what is left in all lanes
            is_cut = in_rows < tail_start
            of, in_rows = of[is_cut], in_rows[is_cut]
            yield from find.list_uses(
                lanes[chosen][of], ordinals[chosen][of], in_rows, is_ahead=is_ahead
            )


def _list_rows(starts: Ints, ends: Ints, units_of_row: int) -> tuple[Ints, Ints]:
    """List the rows of a lane that have units [starts, ends), which are int64 [documents].

    Returns the document and the row, as an index in its lane, of each pair: int64 [pairs] each.
    """
    # a document without units is read with the row that follows, so it counts as in one row
    firsts = starts // units_of_row
    counts = np.maximum(starts, ends - 1) // units_of_row - firsts + 1
    of = np.repeat(np.arange(len(starts)), counts)
    return of, firsts[of] + count_within(counts)


def _list_played(reading: NodeReads, index: int, find: _ShardFinder) -> Parts:
    """Yield the uses of `best_fit` lanes, which are played to find their rows."""
    walker, start = reading.lengths.walkers[index], reading.start
    assert isinstance(walker, BestFitWalker)
    assert start.residues is not None
    finder = BestFitRows(walker, start.cursors[index], start.residues[index])
    stops = _find_stops(reading, index)
    firsts = np.full((int(stops.max(initial=0)), len(stops)), NEVER)
    rows = _LaneRows(reading, index, min(reading.num_rows, reading.tail_starts[index]))
    step = max(1, _ROWS_AT_ONCE // len(stops))
    for start_row in range(0, int(rows.counts.max()), step):
        lanes, in_lane = rows.list_between(start_row, start_row + step)
        pieces = finder.find(lanes, in_lane)
        in_rows = rows.at(lanes, in_lane)[pieces[:, tables.PIECE_ROW]]
        own, ordinals = tables.split_keys(pieces[:, tables.PIECE_DOCUMENT])
        np.minimum.at(firsts, (ordinals, own), in_rows)
        yield from find.list_uses(own, ordinals, in_rows)
    yield from _list_others(reading, index, find, firsts)


def _list_others(reading: NodeReads, index: int, find: _ShardFinder, firsts: Ints) -> Parts:
    """Yield the uses of documents that are in no row of the played lanes.

    `firsts` is the first row of each document, or `NEVER`: int64 [ordinals, lanes].
    """
    # once the tail has begun, the documents that are in no row are in the tail
    is_over = reading.tail_starts[index] <= reading.num_rows
    # a lane reads a document without tokens just before the next document, for the same row
    later = np.minimum.accumulate(firsts[::-1])[::-1]
    stops = _find_stops(reading, index)
    for lanes, ordinals in _share_ordinals(stops):
        found = reading.lengths.walkers[index].measure(lanes, ordinals)
        in_rows = later[ordinals[:, 0]]
        is_there = (
            (ordinals < stops)
            & (found.sizes != tables.Size.ABSENT)
            & (firsts[ordinals[:, 0]] == NEVER)
        )
        is_passed = is_there & (found.tokens == 0) & (in_rows < NEVER)
        for chosen, is_ahead in find.split(is_passed, found.tokens):
            passed = lanes[chosen], ordinals[chosen], in_rows[chosen]
            yield from find.list_uses(*passed, is_ahead=is_ahead)
        if not is_over:
            is_left = is_there & ~is_passed
            ahead = np.full(int(is_left.sum()), reading.num_rows)
            yield from find.list_uses(lanes[is_left], ordinals[is_left], ahead, is_ahead=True)


def _list_tail(reading: NodeReads, index: int, find: _ShardFinder) -> Parts:
    """Yield the uses of a component's tail. A row of a tail may have documents of any lane."""
    if (found := reading.find_tail(index)) is None:
        return
    tail, in_run = found
    num_lanes = reading.recipe.num_lanes
    pieces = tail.pieces[tail.pieces[:, tables.PIECE_ROW] < len(in_run)]
    remnants = tail.remnants[pieces[:, tables.PIECE_DOCUMENT]]
    rows = in_run[pieces[:, tables.PIECE_ROW]]
    lanes = remnants[:, tables.REMNANT_LANE] % num_lanes
    ordinals = remnants[:, tables.REMNANT_ORDINAL]
    if reading.share.is_even and not reading.recipe.config.is_mixed:
        owners = lanes  # the owner of a lane reads its documents for all nodes
    else:
        owners = rows % num_lanes
    yield find.find(lanes, ordinals, rows, owners), False
    # with token lengths, nodes may fetch the other remnants ahead, but do not need them
    lanes, ordinals = tail.remnants[:, [tables.REMNANT_LANE, tables.REMNANT_ORDINAL]].T
    starts = np.full(len(lanes), reading.tail_starts[index])
    yield from find.list_uses(
        lanes % num_lanes, ordinals, starts, is_ahead=not reading.measures_rest
    )


class _ShardFinder:
    """Finds the shards of a component's documents, and the nodes that fetch them."""

    def __init__(self, reading: NodeReads, index: int) -> None:
        self._component = component = reading.recipe.components[index]
        self._orders = reading.lengths.walkers[index].orders
        self._starts = np.cumsum(component.shard_sizes) - component.shard_sizes
        self._share, self._sharers = reading.share, reading.sharers
        self._num_rows = reading.num_rows
        self._first = int(reading.corpus.shards_of(np.array([component.first_sample]))[0])

    def list_uses(
        self, lanes: Ints, ordinals: Ints, rows: Ints, *, is_ahead: bool = False
    ) -> Parts:
        """Yield the uses of documents, given their lanes, ordinals, and rows in the run.

        If several nodes make rows of a lane, each of them may fetch all of the lane's documents.
        """
        found = self.find(lanes, ordinals, rows, lanes)
        if self._sharers is None:
            yield found, is_ahead
            return
        if not is_ahead:
            yield found.take(rows < self._num_rows), False
        uses, nodes = np.nonzero(self._sharers[lanes])
        yield found.take(uses)._replace(nodes=nodes), True

    def split(self, chosen: Flags, sizes: Ints) -> list[tuple[Flags, bool]]:
        """Split the chosen documents by use: needed by rows, or only fetched ahead.

        If several nodes make rows of a lane, no row needs the lane's documents without tokens.
        """
        if self._sharers is None:
            return [(chosen, False)]
        return [(chosen & (sizes > 0), False), (chosen & (sizes == 0), True)]

    def find(self, lanes: Ints, ordinals: Ints, rows: Ints, row_lanes: Ints) -> ShardUses:
        """Return the uses of documents in rows of the run. `row_lanes` are the rows' lanes."""
        epochs, positions = self._component.lanes.epoch_positions(lanes, ordinals)
        samples = self._orders.samples_at(epochs, positions)
        shards = np.searchsorted(self._starts, samples, side="right") - 1 + self._first
        return ShardUses(find_nodes(self._share, row_lanes, rows), epochs, shards, rows, rows)


class _LaneRows:
    """The rows that a component's lanes make before row `stop` of the run."""

    def __init__(self, reading: NodeReads, index: int, stop: int) -> None:
        recipe = reading.recipe
        self._num_lanes, self._stop = recipe.num_lanes, stop
        self._rows: Ints | None = None
        if len(recipe.components) == 1:
            self.counts = mixture_counts.count_lane_rows(recipe.num_lanes, 0, stop)
            """Number of these rows in each lane: int64 [lanes]."""
            return
        rows = np.arange(stop)
        rows = rows[recipe.components_of(rows) == index]
        lanes = rows % self._num_lanes
        self._rows = rows[np.argsort(lanes, kind="stable")]
        self.counts = np.bincount(lanes, minlength=self._num_lanes)
        self._firsts = np.cumsum(self.counts) - self.counts

    def at(self, lanes: Ints, in_lane: Ints) -> Ints:
        """Return the run index of rows, given by their indices in their lanes: int64 [rows].

        The index is at most `stop`, which stands for all later rows.
        """
        if self._rows is None:
            return np.minimum(in_lane * self._num_lanes + lanes, self._stop)
        found = np.full(len(lanes), self._stop)
        is_there = in_lane < self.counts[lanes]
        found[is_there] = self._rows[(self._firsts[lanes] + in_lane)[is_there]]
        return found

    def list_between(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """List the lane, and the index in it, of each row of [start, stop): int64 [rows] each."""
        each = np.clip(self.counts - start, 0, stop - start)
        return np.repeat(np.arange(self._num_lanes), each), start + count_within(each)
