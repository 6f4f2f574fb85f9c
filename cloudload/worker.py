"""What runs in a worker process: its lanes, batch by batch.

    documents ─► tokenizer ─► one packer a lane ─► rows of this batch ─► Block

A worker owns the lanes of its rank that fall to it, and makes one block for every batch, also where no row of it is its own.
Documents are tokenized many at a time, for all lanes that the coming rows will find short: the blocks of several batches are
made, and sent, at once. The rows of a tail come from all lanes, and go round the workers as if from one lane each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cloudload.cache import ShardCache
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.lane_documents import Document, Place, open_cache, open_documents
from cloudload.lanes import Ints
from cloudload.pack import SPAN_FIELDS, PackedRow, Packer, Packing, residue_spans
from cloudload.plan import NOT_DRY, Block, Plan
from cloudload.stats import COUNTS, DOCUMENTS, EMPTY, FILTERED, PADDING, TOKENS, TRUNCATED
from cloudload.tail import FILTERED as FILTERED_SIZE
from cloudload.tail import NO_DOCUMENT
from cloudload.tokenizer import Tokens

_DOCUMENTS_AT_ONCE = 256
_GUESSED_BYTES_PER_TOKEN = 4
_GUESS_WEIGHT_DOCUMENTS = 64


def read_blocks(plan: Plan, worker: int) -> Iterator[list[Block]]:
    """The blocks of one worker, in lists as long as any other worker's: without end, or one of sizes where they are asked for.

    The first list has one block, so that training starts soon; where rows are replayed, it holds their cursors and no tokens.
    """
    cache = open_cache(plan)
    try:
        yield from _WorkerLanes(plan, worker, cache).blocks()
    finally:
        cache.close()


class _Lane:
    """A lane of one component, and how far it has read ahead."""

    def __init__(self, component: int, number: int, packer: Packer, cursor: tuple[int, int], residue: bytes) -> None:
        self.component, self.number, self.packer = component, number, packer
        self.next_ordinal = cursor[0]
        self.looked_ahead = cursor[0]
        """The ordinal up to which shards have been asked for."""
        self.barren = 0
        """Documents without a token since the last one that had some."""
        self.residue = {ordinal: size for ordinal, _, size in residue_spans(residue, cursor[0])}
        """The sizes of documents that are packed, but have yet to be read again."""
        self._begun = cursor[0] if cursor[1] else None
        self._documents: dict[int, Document] = {}
        self._uncounted: deque[Document] = deque()

    def add(self, document: Document) -> None:
        size = self.residue.pop(document.ordinal, None)
        if size is not None:
            if len(document.tokens) != size:
                raise ValueError(f"document {document.ordinal} had {size} tokens, and now has {len(document.tokens)}")
            self._documents[document.ordinal] = document
            return
        if document.ordinal == self._begun:
            document = replace(document, is_filtered=False)
        self.packer.add(document.ordinal, document.size)
        self._uncounted.append(document)
        if document.size:
            self._documents[document.ordinal] = document
        self.barren = 0 if document.size else self.barren + 1

    def cut(self, row: Tokens, packing: Packing, counts: list[list[int]]) -> tuple[PackedRow, list[tuple[int, ...]]]:
        """Fill `row` with the next packed row; returns it, and its spans (stream, epoch, sample, start, stop)."""
        packed = self.packer.rows.popleft()
        filled = 0
        spans: list[tuple[int, ...]] = []
        for ordinal, start, stop, is_last in packed.pieces:
            document = self._documents.pop(ordinal) if is_last else self._documents[ordinal]
            row[filled : filled + stop - start] = document.tokens[start:stop]
            spans.append((document.stream, document.epoch, document.sample, start, stop))
            counts[document.stream][TOKENS] += stop - start
            filled += stop - start
        while self._uncounted and self._uncounted[0].ordinal < packed.cursor[0]:
            document = self._uncounted.popleft()
            _count(counts[document.stream], FILTERED_SIZE if document.is_filtered else document.size, packing)
        return packed, spans


def _count(counts: list[int], size: int, packing: Packing) -> None:
    """Count a document that is read to its end."""
    counts[FILTERED if size == FILTERED_SIZE else DOCUMENTS if size else EMPTY] += 1
    counts[TRUNCATED] += packing.num_truncated(size)


@dataclass
class _Rows:
    """A block in the making."""

    tokens: Tokens
    lengths: Ints
    cursors: Ints
    counts: list[list[int]]
    residues: list[bytes] = field(default_factory=list)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    first_dry: int = NOT_DRY

    @staticmethod
    def empty(num_rows: int, seq_len: int, num_streams: int) -> _Rows:
        return _Rows(
            tokens=np.zeros((num_rows, seq_len), np.int32),
            lengths=np.zeros(num_rows, np.int64),
            cursors=np.zeros((num_rows, 2), np.int64),
            counts=[[0] * len(COUNTS) for _ in range(num_streams)],
        )

    def set_spans(self, place: int, spans: Sequence[tuple[int, ...]], padding_stream: int) -> None:
        length = sum(stop - start for *_, start, stop in spans)
        self.lengths[place] = length
        self.counts[padding_stream][PADDING] += self.tokens.shape[1] - length
        self.spans += [(place, *span) for span in spans]

    def block(self) -> Block:
        spans = np.array(self.spans, np.int64).reshape(-1, len(SPAN_FIELDS))
        return Block(
            self.tokens, self.lengths, self.cursors, self.residues, spans, np.array(self.counts, np.int64), self.first_dry
        )


class _WorkerLanes:
    def __init__(self, plan: Plan, worker: int, cache: ShardCache) -> None:
        self._plan, self._worker = plan, worker
        self._components, self._packing = plan.recipe.components, plan.recipe.packing
        self._documents = open_documents(plan, cache)
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._first_dry = NOT_DRY
        self._tail_documents: dict[tuple[int, int], Document] = {}
        self._mean_tokens = [
            max(1.0, component.raw_bytes / max(1, component.num_samples) / _GUESSED_BYTES_PER_TOKEN)
            for component in self._components
        ]

    def blocks(self) -> Iterator[list[Block]]:
        plan = self._plan
        if plan.is_measured:
            yield [self._measure()]
            return
        for start, stop in plan.replays():
            rows = self._own_rows(start, stop)
            self._fill_rows(rows)
            yield [self._cut_block(rows, keeps_tokens=False)]
        step = plan.delivery.batch_size * plan.world_size
        first, count = plan.position.rows, 1
        while True:
            yield self._make_blocks([self._own_rows(start, start + step) for start in range(first, first + count * step, step)])
            first, count = first + count * step, plan.batches_at_once

    def _own_rows(self, start: int, stop: int) -> list[int]:
        rows, workers = self._plan.rank_rows(start, stop)
        return [row for row, worker in zip(rows, workers.tolist(), strict=True) if worker == self._worker]

    def _make_blocks(self, batches: list[list[int]]) -> list[Block]:
        rows = [row for rows in batches for row in rows]
        if self._first_dry == NOT_DRY:
            self._fill_rows(rows)
            self._read_tail(rows)
        return [self._cut_block(rows) for rows in batches]

    def _cut_block(self, rows: list[int], *, keeps_tokens: bool = True) -> Block:
        plan = self._plan
        block = _Rows.empty(len(rows), self._packing.seq_len, len(plan.recipe.labels))
        for place, (row, component) in enumerate(zip(rows, self._components_of(rows), strict=True)):
            if row >= plan.tail_start:
                self._cut_tail_row(block, place, row)
                continue
            lane = self._lane(component, row % plan.num_lanes)
            if not lane.packer.rows:
                self._first_dry = min(self._first_dry, row)
                block.residues += [b""] * (len(rows) - place)
                break
            packed, spans = lane.cut(block.tokens[place], self._packing, block.counts)
            block.cursors[place] = packed.cursor
            block.residues.append(packed.residue)
            block.set_spans(place, spans, self._components[component].streams.start)
        block.first_dry = self._first_dry
        if not keeps_tokens:
            block.tokens, block.spans = block.tokens[:0], []
        return block.block()

    def _components_of(self, rows: list[int]) -> list[int]:
        components: list[int] = self._plan.recipe.components_of(np.array(rows, np.int64)).tolist()
        return components

    def _lane(self, component: int, number: int) -> _Lane:
        lane = self._lanes.get((component, number))
        if lane is None:
            lane = self._lanes[component, number] = self._start_lane(component, number)
        return lane

    def _start_lane(self, component: int, number: int) -> _Lane:
        position = self._plan.position
        ordinal, offset = (int(value) for value in position.cursors[component, number])
        residue = position.residue(component, number)
        try:
            packer = self._packing.packer((ordinal, offset), residue)
            return _Lane(component, number, packer, (ordinal, offset), residue)
        except ValueError as error:
            raise StreamChangedError(f"residues: lane {number} has {error}. The state is damaged") from None

    # ------------------------------------------------------------ filling

    def _fill_rows(self, rows: list[int]) -> None:
        """Read on in each lane until it has the rows that are wanted of it, or its end is reached."""
        own = [row for row in rows if row < self._plan.tail_start]
        wanted = Counter((c, row % self._plan.num_lanes) for c, row in zip(self._components_of(own), own, strict=True))
        lanes = [(self._lane(*key), count) for key, count in wanted.items()]
        while places := [place for lane, count in lanes for place in self._next_places(lane, count)]:
            self._add_documents(places)

    def _next_places(self, lane: _Lane, count: int) -> list[Place]:
        """The documents that should give a lane `count` rows: none where it has them, or is at its end."""
        again = [self._find(lane, ordinal) for ordinal in lane.residue]
        missing = count - len(lane.packer.rows)
        if missing <= 0:
            return again
        short = missing * self._packing.seq_len - lane.packer.num_pending
        documents = max(1, min(64, round(short / self._mean_tokens[lane.component])))
        end = self._components[lane.component].lanes.end(lane.number)
        places: list[Place] = []
        while len(places) < documents and (end is None or lane.next_ordinal < end):
            place = self._documents.find(lane.component, lane.number, lane.next_ordinal)
            if place is not None:
                places.append(place)
            lane.next_ordinal += 1
        return again + places

    def _find(self, lane: _Lane, ordinal: int) -> Place:
        place = self._documents.find(lane.component, lane.number, ordinal)
        if place is None:
            raise StreamChangedError(f"residues: lane {lane.number} has no document {ordinal}. The state is damaged")
        return place

    def _add_documents(self, places: list[Place]) -> None:
        samples = np.array([place.sample for place in places], np.int64)
        self._prefetch(dict.fromkeys((place.component, place.lane) for place in places), samples)
        documents = self._documents.read(places)
        for place, document in zip(places, documents, strict=True):
            self._add(self._lane(place.component, place.lane), document)
        for component in dict.fromkeys(place.component for place in places):
            sizes = [document.size for place, document in zip(places, documents, strict=True) if place.component == component]
            weight = len(sizes) / (len(sizes) + _GUESS_WEIGHT_DOCUMENTS)
            self._mean_tokens[component] += weight * (max(1.0, sum(sizes) / len(sizes)) - self._mean_tokens[component])

    def _add(self, lane: _Lane, document: Document) -> None:
        try:
            lane.add(document)
        except ValueError as error:
            raise StreamChangedError(
                f"lane {lane.number}: {error}. The state is damaged, or of another corpus, tokenizer or transform"
            ) from None
        component = self._components[lane.component]
        if lane.barren > component.lanes.num_positions and component.lanes.epochs is None:
            urls = ", ".join(self._plan.recipe.labels[stream] for stream in component.streams)
            raise DatasetError(
                f"a whole epoch of lane {lane.number} of {urls} gave no token: all its documents are empty or left out. "
                "Use more documents, fewer lanes (num_lanes), an eos, or another transform or min_tokens"
            )

    # ------------------------------------------------------------ looking ahead

    def _documents_ahead(self, component: int) -> int:
        """Documents of look-ahead for each lane; by default two shards for each canonical node."""
        plan, of = self._plan, self._components[component]
        if plan.delivery.predownload is not None:
            own = len(plan.own_lanes(self._worker)) * len(self._components)
            return max(1, plan.delivery.predownload // max(1, own))
        per_shard = of.num_samples / max(1, len(of.shard_sizes))
        return max(1, round(2 * per_shard / (plan.num_lanes // of.order.num_canonical_nodes)))

    def _prefetch(self, lanes: dict[tuple[int, int], None], needed: Ints) -> None:
        """Begin to fetch the shards of `needed`, then of what the lanes will read next."""
        ahead: list[tuple[int, int]] = []
        for component, number in lanes:
            lane, of = self._lane(component, number), self._components[component].lanes
            end = of.end(number)
            stop = lane.next_ordinal + self._documents_ahead(component)
            stop = stop if end is None else min(stop, end)
            # never into an epoch whose order would have to be built for this alone
            last_epoch = of.place(number, max(0, lane.next_ordinal - 1))[0]
            lane.looked_ahead = max(lane.looked_ahead, lane.next_ordinal)
            while lane.looked_ahead < stop and of.place(number, lane.looked_ahead)[0] <= last_epoch:
                place = self._documents.find(component, number, lane.looked_ahead)
                if place is not None:
                    ahead.append((lane.looked_ahead - lane.next_ordinal, place.sample))
                lane.looked_ahead += 1
        ahead.sort()
        self._documents.prefetch(np.concatenate([needed, np.array([sample for _, sample in ahead], np.int64)]))

    # ------------------------------------------------------------ the tail

    def _measure(self) -> Block:
        """The sizes of all documents that the lanes have left, lane after lane: in place of one for a hole, `NO_DOCUMENT`."""
        plan, lanes = self._plan, self._components[0].lanes
        own = list(plan.own_lanes(self._worker))
        heads = {lane: int(plan.position.cursors[0, lane, 0]) for lane in own}
        sizes = {lane: np.full((lanes.end(lane) or 0) - heads[lane], NO_DOCUMENT, np.int64) for lane in own}
        left = [(ordinal, lane) for lane in own for ordinal in range(heads[lane], heads[lane] + len(sizes[lane]))]
        places = [place for ordinal, lane in sorted(left) if (place := self._documents.find(0, lane, ordinal))]
        for first in range(0, len(places), _DOCUMENTS_AT_ONCE):
            chunk = places[first : first + _DOCUMENTS_AT_ONCE]
            self._documents.prefetch(np.array([p.sample for p in places[first : first + 2 * _DOCUMENTS_AT_ONCE]], np.int64))
            for place, document in zip(chunk, self._documents.read(chunk), strict=True):
                has_begun = place.ordinal == heads[place.lane] and bool(plan.position.cursors[0, place.lane, 1])
                size = FILTERED_SIZE if document.is_filtered and not has_begun else len(document.tokens)
                sizes[place.lane][place.ordinal - heads[place.lane]] = size
        block = _Rows.empty(0, self._packing.seq_len, 0)
        block.lengths = np.concatenate([sizes[lane] for lane in own]) if own else block.lengths
        return block.block()

    def _read_tail(self, rows: list[int]) -> None:
        """Read the documents of those of `rows` that are of the tail, and let go of all others."""
        tail = self._plan.tail
        if tail is None:
            return
        own = [row for row in rows if row >= self._plan.tail_start]
        wanted = dict.fromkeys((int(unit[0]), int(unit[1])) for row in own for unit in tail.units[tail.row_pieces(row)[:, 0]])
        places = [self._documents.find(0, *key) for key in wanted if key not in self._tail_documents]
        found = [place for place in places if place is not None]
        kept = {key: self._tail_documents[key] for key in wanted if key in self._tail_documents}
        read = zip(found, self._documents.read(found), strict=True)
        self._tail_documents = kept | {(place.lane, place.ordinal): document for place, document in read}

    def _cut_tail_row(self, block: _Rows, place: int, row: int) -> None:
        tail = self._plan.tail
        assert tail is not None
        spans, filled = [], 0
        for unit, start, stop in tail.row_pieces(row).tolist():
            lane, ordinal, _, size, counted = tail.units[unit].tolist()
            document = self._tail_documents[lane, ordinal]
            if counted == NO_DOCUMENT and len(document.tokens) != size:
                raise StreamChangedError(
                    f"lane {lane}: document {ordinal} had {size} tokens, and now has {len(document.tokens)}. "
                    "The state is damaged, or of another corpus, tokenizer or transform"
                )
            block.tokens[place, filled : filled + stop - start] = document.tokens[start:stop]
            spans.append((document.stream, document.epoch, document.sample, start, stop))
            block.counts[document.stream][TOKENS] += stop - start
            filled += stop - start
        for lane, ordinal, _, _, size in tail.row_units(row).tolist():
            if size != NO_DOCUMENT:
                found = self._documents.find(0, lane, ordinal)
                assert found is not None
                _count(block.counts[self._documents.stream_of(found)], size, self._packing)
        block.residues.append(b"")
        block.set_spans(place, spans, 0)
