"""Find when each node uses each shard: the first and last rows that read one of its documents.

    lanes, ordinals ─► documents ─► shards                      by `order`
                   └─► rows of the run, including lane drift    by token lengths
                                             └─► (node, epoch, shard): first row, last row

Up to 2^24 documents are listed one by one, and the result is exact. Beyond that, the order gives
the shuffle blocks in which a node reads a shard, and sampled cursors give the rows at which lanes
reach those blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cloudload.arrays import NEVER, Flags, Ints, count_within
from cloudload.forecast.reading import Reading, list_ends
from cloudload.lengths.sizes import ABSENT, units_of
from cloudload.order.seekable import SeekableOrder
from cloudload.packing.tables import (
    CURSOR_OFFSET,
    CURSOR_ORDINAL,
    REMNANT_LANE,
    REMNANT_ORDINAL,
    TAIL_REMNANT,
)

_MOST_LISTED = 1 << 24
_DOCUMENTS_AT_ONCE = 1 << 20
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
    """The first row that needs a document of the shard. If only read-ahead needs the shard, this is
    at or past the end of the run."""
    last_rows: Ints
    """The last row that needs one."""
    is_listed: bool
    """Whether documents were listed one by one; otherwise uses are extended to shuffle blocks."""

    def take(self, chosen: Flags | Ints) -> ShardUses:
        """Select some of the uses."""
        return ShardUses(
            self.nodes[chosen],
            self.epochs[chosen],
            self.shards[chosen],
            self.first_rows[chosen],
            self.last_rows[chosen],
            self.is_listed,
        )


class FoundUses(NamedTuple):
    """The uses of a run."""

    needed: ShardUses
    """Uses by the rows of the run."""
    fetched: ShardUses
    """These, and uses by later rows and documents that workers may read or fetch ahead."""


def find_uses(reading: Reading) -> FoundUses:
    """Find all uses of a run. Raises `CacheError` if an order or a table cannot be built."""
    recipe = reading.lengths.recipe
    is_listed = int(reading.stops.sum()) <= _MOST_LISTED
    number = len(recipe.corpus.shard_sizes)
    needed: list[ShardUses] = []
    fetched: list[ShardUses] = []
    for place in range(len(recipe.components)):
        is_seekable = isinstance(reading.lengths.walkers[place].orders(0), SeekableOrder)
        list_uses = _list_documents if is_listed or not is_seekable else _list_blocks
        is_listed &= list_uses is _list_documents
        for part in list_uses(reading, place):
            uses = ShardUses(*part, is_listed)
            own = uses.take(uses.first_rows < reading.num_rows)
            own = replace(own, last_rows=np.minimum(own.last_rows, reading.num_rows - 1))
            # parts have one use per document and row, so join them as they arrive
            needed.append(_join([own], number))
            fetched.append(_join([uses], number))
    return FoundUses(_join(needed, number), _join(fetched, number))


Part = tuple[Ints, Ints, Ints, Ints, Ints]
"""The columns of `ShardUses`."""


def _join(parts: Sequence[ShardUses], num_shards: int) -> ShardUses:
    """Merge all uses of a shard by one node in one epoch."""
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


# ---------------------------------------------------------------- documents, one by one


def _list_documents(reading: Reading, place: int) -> Iterator[Part]:
    """Yield the uses of a component in chunks of documents."""
    lengths, component = reading.lengths, reading.lengths.recipe.components[place]
    num_lanes, packing = component.lanes.num_lanes, reading.lengths.recipe.packing
    stops = np.minimum(reading.stops[place] + reading.documents_ahead[place], list_ends(component))
    before = np.zeros(num_lanes, np.int64)
    step = max(1, _DOCUMENTS_AT_ONCE // num_lanes)
    rows, find = _LaneRows(reading, place), _ShardFinder(reading, place)
    end = int(stops.max(initial=0))
    for start in range(0, end, step):
        ordinals = np.arange(start, min(end, start + step))[:, None] + np.zeros(num_lanes, np.int64)
        numbers = np.broadcast_to(np.arange(num_lanes), ordinals.shape)
        found = lengths.walkers[place].measure(numbers, ordinals)
        ends = before + np.cumsum(units_of(packing, found.sizes), axis=0)
        starts = ends - units_of(packing, found.sizes)
        before = ends[-1]
        is_read = (ordinals < stops) & (found.kinds != ABSENT)
        firsts = starts[is_read] // lengths.units_of_row
        lasts = np.maximum(starts, ends - 1)[is_read] // lengths.units_of_row
        counts = lasts - firsts + 1
        own, ordinal = (np.repeat(each[is_read], counts) for each in (numbers, ordinals))
        number = np.repeat(firsts, counts) + count_within(counts)
        in_rows = rows.at(own, number)
        is_cut = in_rows < rows.tail_start
        yield find.uses(own[is_cut], ordinal[is_cut], in_rows[is_cut])
    yield from _list_tail(reading, find)


def _list_tail(reading: Reading, find: _ShardFinder) -> Iterator[Part]:
    """Yield the uses in a finite run's tail, whose rows may have documents of any lane."""
    lengths = reading.lengths
    if lengths.recipe.config.epochs is None:
        return
    ending = lengths.find_ending(reading.start)
    if reading.last_row <= ending.start and not reading.is_whole:
        return
    tail = lengths.pack_tail(ending)
    remnants = tail.remnants[tail.pieces[:, TAIL_REMNANT]]
    rows = np.repeat(np.arange(tail.first_row, tail.end), np.diff(tail.piece_starts))
    lanes, ordinals = remnants[:, REMNANT_LANE], remnants[:, REMNANT_ORDINAL]
    if reading.world.dealing is None:
        yield find.uses(lanes, ordinals, rows)  # owners of lanes read for all, and send the tokens
    else:
        yield find.uses(lanes, ordinals, rows, rows % lengths.recipe.num_lanes)
    left = tail.remnants
    # with token lengths, lanes fetch their remaining documents ahead, or not at all
    row = ending.start if reading.measures_rest else max(reading.num_rows, tail.end)
    starts = np.full(len(left), row)
    yield find.uses(left[:, REMNANT_LANE], left[:, REMNANT_ORDINAL], starts)


class _ShardFinder:
    """Finds the shards of a component's documents."""

    def __init__(self, reading: Reading, place: int) -> None:
        self._component = component = reading.lengths.recipe.components[place]
        self._orders = reading.lengths.walkers[place].orders
        self._starts = np.cumsum(component.shard_sizes) - component.shard_sizes
        self._world = reading.world
        self._first = int(reading.corpus.shards_of(np.array([component.first_sample]))[0])

    def uses(self, lanes: Ints, ordinals: Ints, rows: Ints, row_lanes: Ints | None = None) -> Part:
        """The shard uses of documents, given by lane and ordinal, in rows of the run.

        `row_lanes` are the lanes of the rows, by default those of the documents.
        """
        epochs, positions = self._component.lanes.epoch_positions(lanes, ordinals)
        samples = self._orders.samples_at(epochs, positions)
        shards = np.searchsorted(self._starts, samples, side="right") - 1 + self._first
        nodes = self._world.nodes_of(lanes if row_lanes is None else row_lanes, rows)
        return nodes, epochs, shards, rows, rows


class _LaneRows:
    """The rows of the run that a component's lanes make."""

    def __init__(self, reading: Reading, place: int) -> None:
        recipe = reading.lengths.recipe
        self._num_lanes, self._most = recipe.num_lanes, reading.last_row
        self.tail_start = NEVER
        """The first row of the tail; `NEVER` in an endless run."""
        if recipe.config.epochs is not None:
            self.tail_start = reading.lengths.find_ending(reading.start).start
            self._most = max(self._most, self.tail_start)
        self._rows: Ints | None = None
        if len(recipe.components) > 1:
            rows = np.arange(reading.last_row)
            rows = rows[recipe.components_of(rows) == place]
            lanes = rows % self._num_lanes
            self._rows = rows[np.argsort(lanes, kind="stable")]
            self._counts = np.bincount(lanes, minlength=self._num_lanes)
            self._firsts = np.cumsum(self._counts) - self._counts

    def at(self, lanes: Ints, numbers: Ints) -> Ints:
        """The row of the run that is row `numbers` of a lane, within the component: int64.

        The result is at most the last row, or the start of the tail.
        """
        if self._rows is None:
            return np.minimum(numbers * self._num_lanes + lanes, self._most)
        found = np.full(len(lanes), self._most)
        is_there = numbers < self._counts[lanes]
        found[is_there] = self._rows[(self._firsts[lanes] + numbers)[is_there]]
        return found


# ---------------------------------------------------------------- shuffle blocks


def _list_blocks(reading: Reading, place: int) -> Iterator[Part]:
    """Yield the uses of a component, epoch by epoch, by its order's shuffle blocks."""
    lengths, component = reading.lengths, reading.lengths.recipe.components[place]
    lanes, num_nodes = component.lanes, component.lanes.num_nodes
    rows, cursors = _sample_cursors(reading, place)
    first_shard = int(reading.corpus.shards_of(np.array([component.first_sample]))[0])
    last_epoch = int(lanes.epoch_positions(np.arange(lanes.num_lanes), cursors[-1])[0].max())
    for epoch in range(last_epoch + 1):
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
            started = np.interp(begins, cursors[:, lane], rows).astype(np.int64)
            is_read = begins < cursors[-1, lane] + reading.documents_ahead[place]
            yield (
                np.full(int(is_read.sum()), reading.world.node_of_lane[lane]),
                np.full(int(is_read.sum()), epoch),
                uses.shards[own][is_read] + first_shard,
                started[is_read],
                np.interp(ends, cursors[:, lane], rows).astype(np.int64)[is_read],
            )


def _sample_cursors(reading: Reading, place: int) -> tuple[Ints, Ints]:
    """Rows of the run, int64 [rows], and the documents started before them: int64 [rows, lanes]."""
    wanted = np.concatenate(
        [
            np.linspace(0, reading.num_rows, _MOST_CURSORS),
            np.linspace(reading.num_rows, reading.last_row, _MOST_CURSORS),
        ]
    )
    known: dict[int, Ints] = {}
    for row in np.unique(wanted.astype(np.int64)).tolist():
        if (cursors := reading.find(row)) is not None:
            known[row] = cursors[place, :, CURSOR_ORDINAL] + (cursors[place, :, CURSOR_OFFSET] > 0)
    known.setdefault(reading.last_row, reading.stops[place])
    return np.array(list(known)), np.stack(list(known.values()))
