"""What runs in a worker process: its lanes, batch by batch.

    documents ─► tokenizer ─► one packer a lane ─► rows of this batch ─► Block

A worker owns the lanes of its rank that fall to it, and makes one block for every batch, also where no row of it is its own.
Documents are tokenized many at a time, for all lanes that the coming rows will find short: the blocks of several batches are
made, and sent, at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cloudload.cache import ShardCache
from cloudload.config import DeliveryConfig
from cloudload.dataset import Corpus
from cloudload.documents import DocumentReader
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.lanes import Ints, Lanes, rank_rows, worker_of_rows
from cloudload.order import EpochOrders, OrderConfig
from cloudload.pack import SPAN_FIELDS, ConcatLane, Document
from cloudload.tokenizer import DocumentTokenizer, TokenizerSpec, Tokens

# enough in one call that the tokenizer's work hides ours, and not so much that anybody waits for it
_TOKENS_AT_ONCE, _ROWS_AT_ONCE = 65_536, 32
_GUESSED_BYTES_PER_TOKEN = 4
_GUESS_WEIGHT_DOCUMENTS = 64


@dataclass(frozen=True)
class Plan:
    """All that the workers of one rank need, from where the state stands; picklable."""

    corpus: Corpus
    lanes: Lanes
    order: OrderConfig
    tokenizer: TokenizerSpec
    seq_len: int
    text_key: str
    delivery: DeliveryConfig
    cache_root: Path
    world_index: int
    world_size: int
    num_workers: int
    rows: int
    """Rows of the run that are already emitted."""
    table_rows: int
    """Rows up to which `cursors` counts; the rows from there to `rows` are read again and dropped."""
    cursors: Ints
    """int64 [lanes, 2]: (ordinal, offset) of each lane's next unread token."""

    @property
    def batches_at_once(self) -> int:
        """The batches whose blocks every worker makes at once."""
        rows_of_worker = -(-self.delivery.batch_size // self.num_workers)
        return max(1, min(_ROWS_AT_ONCE, _TOKENS_AT_ONCE // self.seq_len) // rows_of_worker)


@dataclass(frozen=True)
class Block:
    """What one worker adds to one batch of its rank."""

    tokens: Tokens
    """int32 [rows, seq_len], in the order of the rank's rows."""
    lengths: Tokens
    """int32 [rows]: the real tokens at the start of each row; the rest is padding."""
    cursors: Ints
    """int64 [rows, 2]: the lane's cursor after each row."""
    spans: Ints
    """int64 [spans, 6]: row of the block, stream, epoch, sample, start, stop."""
    was_dry: bool
    """Whether no lane of the worker had a token left before this block."""


def read_blocks(plan: Plan, worker: int) -> Iterator[list[Block]]:
    """The blocks of one worker, without end, in lists as long as any other worker's.

    The first list has one block, so that training starts soon; where rows are replayed, it holds their cursors and no tokens.
    """
    cache = ShardCache(
        plan.corpus, plan.cache_root, plan.delivery.retry, plan.delivery.cache_limit_bytes(), plan.delivery.download_threads
    )
    try:
        yield from _WorkerLanes(plan, worker, cache).blocks()
    finally:
        cache.close()


@dataclass
class _Lane:
    """A lane and how far it has read ahead."""

    number: int
    packer: ConcatLane
    next_ordinal: int
    barren: int = 0
    """Documents without a token since the last one that had some."""
    looked_ahead: int = 0
    """The ordinal up to which shards have been asked for."""


class _WorkerLanes:
    def __init__(self, plan: Plan, worker: int, cache: ShardCache) -> None:
        self._plan, self._worker = plan, worker
        self._orders = EpochOrders(plan.cache_root / "orders", plan.corpus.shard_sizes, plan.order)
        self._reader = DocumentReader(plan.corpus, cache, plan.text_key)
        self._tokenizer = DocumentTokenizer(plan.tokenizer)
        own = range(plan.world_index, plan.lanes.num_lanes, plan.world_size)[worker :: plan.num_workers]
        self._lanes = {lane: self._start_lane(lane) for lane in own}
        self._maybe_wet = list(reversed(self._lanes.values()))
        self._mean_tokens = max(1.0, plan.corpus.raw_bytes / plan.corpus.num_samples / _GUESSED_BYTES_PER_TOKEN)
        self._look_ahead = self._documents_ahead()

    def blocks(self) -> Iterator[list[Block]]:
        plan = self._plan
        if plan.rows > plan.table_rows:
            yield [self._replay()]
        step = plan.delivery.batch_size * plan.world_size
        first, count = plan.rows, 1
        while True:
            yield self._make_blocks([self._own_rows(start, start + step) for start in range(first, first + count * step, step)])
            first, count = first + count * step, plan.batches_at_once

    def _own_rows(self, start: int, stop: int) -> list[int]:
        plan = self._plan
        rows = rank_rows(start, stop, plan.world_index, plan.world_size)
        workers = worker_of_rows(rows, plan.lanes.num_lanes, plan.world_size, plan.num_workers)
        return [row for row, worker in zip(rows, workers.tolist(), strict=True) if worker == self._worker]

    def _replay(self) -> Block:
        [block] = self._make_blocks([self._own_rows(self._plan.table_rows, self._plan.rows)])
        return replace(block, tokens=block.tokens[:0], spans=block.spans[:0])

    def _make_blocks(self, batches: list[list[int]]) -> list[Block]:
        self._fill_rows([row for rows in batches for row in rows])
        return [self._cut_block(rows) for rows in batches]

    def _cut_block(self, rows: list[int]) -> Block:
        was_dry = self._is_dry()
        tokens = np.zeros((len(rows), self._plan.seq_len), np.int32)
        lengths = np.zeros(len(rows), np.int32)
        cursors = np.zeros((len(rows), 2), np.int64)
        spans = []
        for place, row in enumerate(rows):
            packer = self._lane_of(row).packer
            cut = packer.cut_row(tokens[place])
            lengths[place] = sum(stop - start for *_, start, stop in cut)
            cursors[place] = packer.cursor
            spans += [(place, *span) for span in cut]
        return Block(tokens, lengths, cursors, np.array(spans, np.int64).reshape(-1, len(SPAN_FIELDS)), was_dry)

    def _lane_of(self, row: int) -> _Lane:
        return self._lanes[row % self._plan.lanes.num_lanes]

    def _start_lane(self, lane: int) -> _Lane:
        ordinal, offset = (int(number) for number in self._plan.cursors[lane])
        return _Lane(lane, ConcatLane(ordinal, offset), ordinal, looked_ahead=ordinal)

    # ------------------------------------------------------------ filling

    def _fill_rows(self, rows: list[int]) -> None:
        wanted = Counter(row % self._plan.lanes.num_lanes for row in rows)
        self._fill({lane: count * self._plan.seq_len for lane, count in wanted.items()})

    def _fill(self, wanted: dict[int, int]) -> None:
        """Read on in each lane until it has the tokens that are wanted of it, or its end is reached."""
        while True:
            places = [
                place
                for lane, tokens in wanted.items()
                if (short := tokens - self._lanes[lane].packer.num_tokens) > 0
                for place in self._next_places(self._lanes[lane], short)
            ]
            if not places:
                return
            self._add_documents(places)

    def _next_places(self, lane: _Lane, short: int) -> list[tuple[_Lane, int, int, int]]:
        """(lane, ordinal, epoch, sample) of the documents that should give `short` tokens; none at the lane's end."""
        count = max(1, min(64, round(short / self._mean_tokens)))
        end = self._plan.lanes.end(lane.number)
        places: list[tuple[_Lane, int, int, int]] = []
        while len(places) < count and (end is None or lane.next_ordinal < end):
            found = self._find(lane.number, lane.next_ordinal)
            if found is not None:
                places.append((lane, lane.next_ordinal, *found))
            lane.next_ordinal += 1
        return places

    def _find(self, lane: int, ordinal: int) -> tuple[int, int] | None:
        """(epoch, sample) of a lane's document, or None for a hole."""
        epoch, position = self._plan.lanes.place(lane, ordinal)
        if position >= self._plan.lanes.num_samples:
            return None
        return epoch, int(self._orders(epoch)[position])

    def _add_documents(self, places: list[tuple[_Lane, int, int, int]]) -> None:
        samples = np.array([sample for *_, sample in places], np.int64)
        self._prefetch(dict.fromkeys(lane.number for lane, *_ in places), samples)
        streams = np.searchsorted(self._plan.corpus.stream_starts, samples, side="right") - 1
        within = samples - self._plan.corpus.stream_starts[streams]
        encoded = self._tokenizer.encode(self._reader.read(samples))
        weight = len(encoded) / (len(encoded) + _GUESS_WEIGHT_DOCUMENTS)
        self._mean_tokens += weight * (max(1.0, sum(map(len, encoded)) / len(encoded)) - self._mean_tokens)
        for (lane, ordinal, epoch, _), stream, sample, tokens in zip(places, streams, within, encoded, strict=True):
            self._add(lane, Document(ordinal, int(stream), epoch, int(sample), tokens))

    def _add(self, lane: _Lane, document: Document) -> None:
        try:
            lane.packer.add(document)
        except ValueError as error:
            raise StreamChangedError(
                f"lane {lane.number}: {error}. The state is damaged, or of another corpus or tokenizer"
            ) from None
        lane.barren = 0 if len(document.tokens) else lane.barren + 1
        if lane.barren > self._plan.lanes.num_samples:
            urls = ", ".join(dataset.url for dataset in self._plan.corpus.datasets)
            raise DatasetError(
                f"a whole epoch of lane {lane.number} of {urls} gave no token: all its documents are empty. "
                "Use more documents, fewer lanes (num_lanes), or an eos"
            )

    # ------------------------------------------------------------ looking ahead

    def _documents_ahead(self) -> int:
        """Documents of look-ahead for each lane; by default two shards for each canonical node."""
        plan = self._plan
        if plan.delivery.predownload is not None:
            return max(1, plan.delivery.predownload // max(1, len(self._lanes)))
        per_shard = plan.corpus.num_samples / max(1, len(plan.corpus.shard_sizes))
        lanes_per_node = plan.lanes.num_lanes // plan.order.num_canonical_nodes
        return max(1, round(2 * per_shard / lanes_per_node))

    def _prefetch(self, lanes: dict[int, None], needed: Ints) -> None:
        """Begin to fetch the shards of `needed`, then of what the lanes will read next."""
        ahead: list[tuple[int, int]] = []
        for number in lanes:
            lane = self._lanes[number]
            end = self._plan.lanes.end(number)
            stop = lane.next_ordinal + self._look_ahead
            stop = stop if end is None else min(stop, end)
            # never into an epoch whose order would have to be built for this alone
            last_epoch = self._plan.lanes.place(number, max(0, lane.next_ordinal - 1))[0]
            lane.looked_ahead = max(lane.looked_ahead, lane.next_ordinal)
            while lane.looked_ahead < stop and self._plan.lanes.place(number, lane.looked_ahead)[0] <= last_epoch:
                found = self._find(number, lane.looked_ahead)
                if found is not None:
                    ahead.append((lane.looked_ahead - lane.next_ordinal, found[1]))
                lane.looked_ahead += 1
        ahead.sort()
        self._reader.prefetch(np.concatenate([needed, np.array([sample for _, sample in ahead], np.int64)]))

    # ------------------------------------------------------------ ending

    def _is_dry(self) -> bool:
        """Whether every lane has come to its end; never in endless epochs."""
        if self._plan.lanes.epochs is None:
            return False
        while self._maybe_wet:
            lane = self._maybe_wet[-1]
            if not lane.packer.num_tokens:
                self._fill({lane.number: 1})
            if lane.packer.num_tokens:
                return False
            self._maybe_wet.pop()
        return True
