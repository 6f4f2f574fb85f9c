"""What runs in a worker process: its lanes, some batches at a time.

    documents ─► tokenizer ─► lane rows ─► pieces of this worker's rows ─► Block

A worker owns the lanes of its rank that fall to it, and has a part in every batch, also where no
row of it is its own. All that the coming rows of all its lanes are short of is read, tokenized and
cut together, and sent as one block. The rows of a tail come from all lanes, and go round the
workers as if from one lane each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cloudload.arrays import NEVER, Flags, Ints, Tokens, count_within
from cloudload.cache.shard_cache import ShardCache
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.packing.best_fit_lanes import BestFitLanes
from cloudload.packing.concat_lanes import ConcatLanes
from cloudload.packing.lane_packer import LaneRows, PackerLanes, own_documents
from cloudload.packing.packers import Packing
from cloudload.packing.rows import Framing, fill_rows, list_spans, row_lengths
from cloudload.packing.tables import (
    BUFFER,
    COUNT,
    CURSOR_OFFSET,
    CURSOR_ORDINAL,
    FLAT_LANE,
    PIECE_DOCUMENT,
    SIZE,
    SIZE_ABSENT,
    SIZE_FILTERED,
    TAIL_UNIT,
    UNIT_LANE,
    UNIT_ORDINAL,
    UNIT_SIZE,
    Documents,
)
from cloudload.packing.tail import Tail
from cloudload.stats import FILTERED
from cloudload.workers.block import Block, BlockRows, Cut
from cloudload.workers.documents import Places, open_cache, open_documents
from cloudload.workers.plan import Plan
from cloudload.workers.prefetch import ReadAhead

_DOCUMENTS_AT_ONCE = 256
_GUESSED_BYTES_PER_TOKEN = 4
_GUESS_WEIGHT_DOCUMENTS = 64
_MOST_DOCUMENTS_OF_LANE = 64
# how many times what lanes lack is read at once: each call costs as much as some documents, and
# what waits takes memory
_MOST_EAGERNESS, _WAITING_BYTES = 8.0, 1 << 28
NewTokens = Callable[[int, int], Tokens]
"""Gives int32 [rows, seq_len] to write tokens into; what it holds is undefined."""


def read_blocks(plan: Plan, worker: int, new_tokens: NewTokens | None = None) -> Iterator[Block]:
    """The blocks of one worker, each of as many batches as any other worker's: without end, or one
    of sizes where those are asked for.

    The first block is of one batch, and each of the next twice as many, so that training starts
    soon. Where rows are replayed, blocks hold their cursors and no tokens.
    """
    cache = open_cache(plan)
    try:
        yield from _WorkerLanes(plan, worker, cache, new_tokens or _new_tokens).blocks()
    finally:
        cache.close()


def _new_tokens(num_rows: int, seq_len: int) -> Tokens:
    return np.empty((num_rows, seq_len), np.int32)


def open_lane_rows(
    packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None
) -> LaneRows:
    """The lanes as they stand at `cursors` (int64 [flat_lanes, 2]) with `residues`."""
    if packing.name == "concat":
        return ConcatLanes(packing.seq_len, num_lanes, cursors)
    if packing.name == "best_fit":
        return BestFitLanes(packing, num_lanes, cursors, residues)
    return PackerLanes(packing, num_lanes, cursors, residues)


class _WorkerLanes:
    def __init__(self, plan: Plan, worker: int, cache: ShardCache, new_tokens: NewTokens) -> None:
        self._plan, self._worker, self._new_tokens = plan, worker, new_tokens
        self._components, self._packing = plan.recipe.components, plan.recipe.packing
        self._documents, self._traffic = open_documents(plan, cache), cache.traffic
        self._framing = Framing.of(plan.recipe.tokenizer.frames)
        position = plan.position
        cursors = position.cursors.reshape(-1, 2)
        residues = None if position.residues is None else position.residues.ravel().tolist()
        self._lanes = open_lane_rows(self._packing, plan.num_lanes, cursors, residues)
        self._next_ordinals = cursors[:, CURSOR_ORDINAL].copy()
        self._begun = np.where(cursors[:, CURSOR_OFFSET] > 0, cursors[:, CURSOR_ORDINAL], -1)
        """The document in which each lane's first cursor stands."""
        self._barren = np.zeros(len(cursors), np.int64)
        """Documents of each lane without a token since the last one that had some."""
        self._first_dry = NEVER
        self._tail_documents: dict[tuple[int, int], tuple[Ints, memoryview]] = {}
        self._mean_tokens = np.array(
            [
                max(
                    1.0,
                    component.raw_bytes / max(1, component.num_samples) / _GUESSED_BYTES_PER_TOKEN,
                )
                for component in self._components
            ]
        )
        waiting_bytes = (
            4 * self._mean_tokens.max() * len(plan.own_lanes(worker)) * len(self._components)
        )
        self._most_eagerness = float(
            np.clip(_WAITING_BYTES / max(1, waiting_bytes), 1, _MOST_EAGERNESS)
        )
        self._eagerness, self._is_awaited = 1.0, True
        self._ends = self._find_ends()
        self._read_ahead = ReadAhead(plan, worker, self._documents, self._next_ordinals, self._ends)

    def _find_ends(self) -> Ints:
        """The ordinal at which each flat_lane has read all epochs."""
        of_lanes = [component.lanes for component in self._components]
        ends = [
            NEVER if (end := lanes.end(lane)) is None else end
            for lanes in of_lanes
            for lane in range(lanes.num_lanes)
        ]
        return np.array(ends, np.int64)

    def blocks(self) -> Iterator[Block]:
        plan = self._plan
        if plan.is_measured:
            yield self._measure()
            return
        for start, stop in plan.replays():
            yield self._make_block(start, [stop], keeps_tokens=False)
        step = plan.delivery.batch_size * plan.world_size
        first, count = plan.position.rows, 1
        while True:
            stop = first + count * step
            yield self._make_block(first, list(range(first + step, stop + 1, step)))
            self._is_awaited = False
            first, count = stop, min(2 * count, plan.batches_at_once)

    def _make_block(self, start: int, stops: list[int], *, keeps_tokens: bool = True) -> Block:
        """The rows of this worker from `start` on, of the batches that end at `stops`."""
        plan, seq_len = self._plan, self._packing.seq_len
        # the first blocks need few documents, and soon
        self._eagerness = min(float(len(stops)), self._most_eagerness)
        rows = plan.worker_rows(self._worker, start, stops[-1])
        bounds = np.searchsorted(rows, [start, *stops])
        tokens = self._new_tokens(len(rows) if keeps_tokens else 0, seq_len)
        block = BlockRows(rows, bounds, self._packing, len(plan.recipe.labels))
        if self._first_dry == NEVER:
            num_of_lanes = int(np.searchsorted(rows, plan.tail_start))
            cut = self._cut_rows(block, rows[:num_of_lanes])
            if plan.tail is not None:
                cut += self._cut_tail(block, plan.tail, num_of_lanes)
            if keeps_tokens:
                lengths = fill_rows(tokens, cut.table, cut.buffers, cut.pieces, self._framing)
                block.spans = list_spans(cut.table, cut.pieces)
            else:
                lengths = row_lengths(cut.pieces, len(rows))
            block.count_tokens(cut, lengths, self._padding_streams(rows), self._first_dry)
        return block.block(tokens, self._first_dry, self._traffic.take())

    def _padding_streams(self, rows: Ints) -> Ints:
        """The stream that is told of a row's padding."""
        firsts = np.array([component.streams.start for component in self._components])
        streams: Ints = firsts[self._plan.recipe.components_of(rows)]
        return streams

    # ------------------------------------------------------------ rows of lanes

    def _cut_rows(self, block: BlockRows, rows: Ints) -> Cut:
        """Fill the lanes, and cut these rows, the first of the block, from them."""
        flat_lanes = (
            self._plan.recipe.components_of(rows) * self._plan.num_lanes
            + rows % self._plan.num_lanes
        )
        lanes, wanted = np.unique(flat_lanes, return_counts=True)
        try:
            self._fill(lanes, wanted)
        except ValueError as error:
            raise StreamChangedError(
                f"{error}. The state is damaged, or of another corpus, tokenizer or transform"
            ) from None
        self._read_ahead.build_orders(lanes)
        cut = self._lanes.cut(lanes, wanted)
        # rows lane after lane, as they were cut, to the block's rows
        places = np.argsort(flat_lanes, kind="stable")
        is_cut = np.arange(len(rows)) < np.repeat(np.cumsum(wanted) - wanted + cut.num_rows, wanted)
        self._first_dry = min(self._first_dry, int(rows[places[~is_cut]].min(initial=NEVER)))
        return Cut(cut.table, cut.buffers, block.take(cut, places[is_cut]))

    def _fill(self, lanes: Ints, wanted: Ints) -> None:
        """Read on in each lane until it has the rows that are wanted of it, or its end is
        reached."""
        again = self._lanes.unread(lanes)
        if len(again[0]):
            self._add(self._documents.find(*again), again=True)
        means = self._mean_tokens[lanes // self._plan.num_lanes]
        eagerness = self._eagerness
        while True:
            missing = self._lanes.missing(lanes, wanted)
            room = self._ends[lanes] - self._next_ordinals[lanes]
            short = np.flatnonzero((missing > 0) & (room > 0))
            if not len(short):
                return
            lanes, wanted, means, missing, room = (
                values[short] for values in (lanes, wanted, means, missing, room)
            )
            numbers = np.clip(
                np.ceil(eagerness * missing / means), 1, _MOST_DOCUMENTS_OF_LANE
            ).astype(np.int64)
            numbers = np.minimum(numbers, room)
            flat_lanes = np.repeat(lanes, numbers)
            ordinals = self._next_ordinals[flat_lanes] + count_within(numbers)
            self._next_ordinals[lanes] += numbers
            self._add(self._documents.find(flat_lanes, ordinals))
            eagerness *= 2

    def _add(self, places: Places, *, again: bool = False) -> None:
        """Read documents of lanes, `again` where they were packed before a state was saved."""
        if not len(places):
            return
        self._read_ahead.fetch(places, is_awaited=self._is_awaited)
        has_begun: Flags = (self._begun[places.flat_lanes] == places.ordinals) | again
        documents = self._documents.read(places, has_begun if has_begun.any() else None)
        self._lanes.add(documents, has_begun)
        if not again:
            self._learn_sizes(documents)

    def _learn_sizes(self, documents: Documents) -> None:
        sizes, flat_lanes = documents.table[:, SIZE].copy(), documents.table[:, FLAT_LANE].copy()
        for component in np.unique(flat_lanes // self._plan.num_lanes).tolist():
            own = sizes[flat_lanes // self._plan.num_lanes == component]
            weight = len(own) / (len(own) + _GUESS_WEIGHT_DOCUMENTS)
            self._mean_tokens[component] += weight * (
                max(1.0, own.mean()) - self._mean_tokens[component]
            )
        if sizes.all():
            self._barren[flat_lanes] = 0
            return
        lanes, firsts = np.unique(flat_lanes, return_index=True)
        numbers = np.diff(np.append(firsts, len(flat_lanes)))
        last_full = np.maximum.reduceat(np.where(sizes > 0, np.arange(len(sizes)), -1), firsts)
        trailing = firsts + numbers - 1 - last_full
        self._barren[lanes] = np.where(last_full >= firsts, trailing, self._barren[lanes] + numbers)
        for flat_lane in lanes[(last_full < firsts)].tolist():
            self._check_barren(flat_lane)

    def _check_barren(self, flat_lane: int) -> None:
        component = self._components[flat_lane // self._plan.num_lanes]
        if (
            self._barren[flat_lane] > component.lanes.num_positions
            and component.lanes.epochs is None
        ):
            urls = ", ".join(self._plan.recipe.labels[stream] for stream in component.streams)
            raise DatasetError(
                f"a whole epoch of lane {flat_lane % self._plan.num_lanes} of {urls} gave no token: all "
                "its documents are empty or "
                "left out. Use more documents, fewer lanes (num_lanes), an eos, or another "
                "transform or min_tokens"
            )

    # ------------------------------------------------------------ the tail

    def _measure(self) -> Block:
        """The sizes of all documents that the lanes have left, lane after lane: in place of one for
        a hole, `SIZE_ABSENT`."""
        plan = self._plan
        own = np.array(plan.own_lanes(self._worker), np.int64)
        heads = self._next_ordinals[own]
        numbers = self._ends[own] - heads
        flat_lanes = np.repeat(own, numbers)
        firsts = np.cumsum(numbers) - numbers
        ordinals = np.repeat(heads, numbers) + count_within(numbers)
        sizes = np.full(len(flat_lanes), SIZE_ABSENT, np.int64)
        in_order = np.lexsort((flat_lanes, ordinals))
        places = self._documents.find(flat_lanes[in_order], ordinals[in_order])
        for first in range(0, len(places), _DOCUMENTS_AT_ONCE):
            chunk = places[slice(first, first + _DOCUMENTS_AT_ONCE)]
            self._documents.prefetch(places.samples[first : first + 2 * _DOCUMENTS_AT_ONCE])
            table = self._documents.read(
                chunk, self._begun[chunk.flat_lanes] == chunk.ordinals
            ).table
            found = np.searchsorted(own, chunk.flat_lanes)
            is_left_out = table[:, COUNT] == FILTERED
            sizes[firsts[found] + chunk.ordinals - heads[found]] = np.where(
                is_left_out, SIZE_FILTERED, table[:, SIZE]
            )
        block = BlockRows(own[:0], np.zeros(1, np.int64), self._packing, 0)
        block.lengths = sizes
        return block.block(self._new_tokens(0, 0), NEVER, self._traffic.take())

    def _cut_tail(self, block: BlockRows, tail: Tail, first_place: int) -> Cut:
        """The pieces of the block's rows from `first_place` on, which are of the tail; reads what
        they need."""
        units: list[Ints] = []
        pieces: list[Ints] = []
        for place in range(first_place, len(block.rows)):
            row = int(block.rows[place])
            of_row = tail.row_pieces(row)
            units.append(tail.units[of_row[:, TAIL_UNIT]])
            pieces.append(np.column_stack([np.full(len(of_row), place), of_row]))
            block.count_units(place, self._find_units(tail.row_units(row)))
        if not any(map(len, units)):
            return Cut.empty()
        joined, cut = np.concatenate(units), np.concatenate(pieces)
        keys = list(
            zip(joined[:, UNIT_LANE].tolist(), joined[:, UNIT_ORDINAL].tolist(), strict=True)
        )
        self._read_tail(keys)
        documents = dict.fromkeys(keys)
        for lane, ordinal, _, size, counted in joined.tolist():
            found = int(self._tail_documents[lane, ordinal][0][SIZE])
            if counted == SIZE_ABSENT and found != size:
                raise StreamChangedError(
                    f"lane {lane}: document {ordinal} had {size} tokens, and now has {found}. "
                    "The state is damaged, or of another corpus, tokenizer or transform"
                )
        numbers = {key: number for number, key in enumerate(documents)}
        table = np.stack([self._tail_documents[key][0] for key in documents])
        table[:, BUFFER] = np.arange(len(table))
        cut[:, PIECE_DOCUMENT] = [numbers[key] for key in keys]
        return Cut(table, [self._tail_documents[key][1] for key in documents], cut)

    def _read_tail(self, keys: list[tuple[int, int]]) -> None:
        """Hold these documents, and let go of all others."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._tail_documents]
        pairs = np.array(missing, np.int64).reshape(-1, 2)
        places = self._documents.find(pairs[:, 0], pairs[:, 1])
        # whether one is left out was settled when it was measured
        read = (
            own_documents(self._documents.read(places, np.ones(len(places), np.bool_)))
            if missing
            else []
        )
        held = {key: self._tail_documents[key] for key in keys if key in self._tail_documents}
        self._tail_documents = held | dict(zip(missing, read, strict=True))

    def _find_units(self, units: Ints) -> Ints:
        """(stream, size) of the units that have yet to be counted."""
        units = units[units[:, UNIT_SIZE] != SIZE_ABSENT]
        places = self._documents.find(units[:, UNIT_LANE], units[:, UNIT_ORDINAL])
        streams = self._plan.recipe.corpus.streams_of(places.samples)
        return np.column_stack([streams, units[:, UNIT_SIZE]])
