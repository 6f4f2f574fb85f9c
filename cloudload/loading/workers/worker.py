"""Make the rows of one worker, one block of batches at a time.

    documents ─► tokenizer ─► packers of lanes ─► pieces of this worker's rows ─► Block

A worker owns a share of the rank's lanes. Its blocks cover every batch, even batches in which it
has no row. It reads, tokenizes and packs the documents of several batches together, and yields
their rows as one block. In a world whose size does not divide the number of lanes, and with
`balance`, its rows are dealt, and some of them belong to lanes of other workers (`DealtRows`).

    rows of own lanes ────┐
    rows of other lanes ──┴─► pieces, from token lengths ─► PieceReader ─► CutRows

Before a run relies on the lengths of unread documents, a sample of them is checked
(`check_some_lengths`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from cloudload.data import Corpus, open_shard_start
from cloudload.errors import StoreError, StreamChangedError
from cloudload.loading.workers.block import Block, BlockBuilder, limit_batches
from cloudload.loading.workers.dealt_rows import DealtRows
from cloudload.loading.workers.document_reader import DocumentReader, OneShard
from cloudload.loading.workers.documents import LaneDocuments, open_cache, open_documents
from cloudload.loading.workers.held_documents import HeldDocuments
from cloudload.loading.workers.hooked_rows import change_rows
from cloudload.loading.workers.lane_reader import LaneReader, find_ends
from cloudload.loading.workers.piece_reader import PieceReader
from cloudload.loading.workers.tail_reader import TailReader, open_shared
from cloudload.loading.workers.worker_plan import NextPhase, Request, WorkerPlan
from cloudload.order import RankShare
from cloudload.rows import fill_rows, list_spans, row_lengths
from cloudload.run import Recipe, lengths_index
from cloudload.system import NEVER, Ints, Tokens, count_within

logger = logging.getLogger("cloudload.workers")

NewTokens = Callable[[int, int], Tokens]
"""Allocates an uninitialized array for tokens: int32 [rows, seq_len]."""

_MOST_SHARDS, _SAMPLES_OF_SHARD = 16, 4


class Worker:
    """One worker of a rank. Its cache, orders, and tokenizer stay open from phase to phase, and its
    documents stay in memory.

    `retries` (int64 [1]) counts the retries of requests to the store.
    """

    def __init__(
        self, plan: WorkerPlan, index: int, retries: Ints, new_tokens: NewTokens | None = None
    ) -> None:
        self.index, self.new_tokens = index, new_tokens or _new_tokens
        self._cache = open_cache(plan.inputs, plan.delivery, retries)
        try:
            self.documents = open_documents(
                plan.inputs, self._cache, compares=compares_ids(plan.share, index)
            )
        except BaseException:
            self._cache.close()
            raise
        self.traffic, self.held = self._cache.traffic, HeldDocuments(plan.recipe.packing)

    def read_blocks(self, plan: WorkerPlan) -> Iterator[Block]:
        """Yield this worker's blocks. The k-th blocks of all workers cover the same batches.

        `plan` is the worker's own plan, or a later phase of it. The first blocks are those of
        replayed rows, which have cursors but no tokens. The next block has one batch, so that
        training starts early. Each later block has twice as many batches as the previous one, up to
        `limit_batches`. The blocks end only at a pause, and after a request: sizes of documents are
        one block, and their tokens are blocks of one row each.

        Raises `StreamChangedError` if the plan's position does not match the documents,
        `DatasetError` if an endless lane has no tokens, and the errors of `LaneDocuments.find` and
        `read`.
        """
        return _Rows(self, plan).blocks()

    def receive(self, change: NextPhase) -> None:
        """Keep the tail documents that other workers read for this one."""
        for shared in change.documents:
            self.held.keep(open_shared(shared, self.documents), is_limited=False)

    def close(self) -> None:
        """Close the cache."""
        self._cache.close()


def compares_ids(share: RankShare, worker: int) -> bool:
    """Whether a worker compares its IDs with those of hf. Only one on each machine does."""
    host = share.hosts[share.index]
    return worker == 0 and int(np.argmax(share.hosts == host)) == share.index


def _new_tokens(num_rows: int, seq_len: int) -> Tokens:
    return np.empty((num_rows, seq_len), np.int32)


class _Rows:
    """Makes the blocks of one worker in one phase."""

    def __init__(self, worker: Worker, plan: WorkerPlan) -> None:
        self._plan, self._worker, self._documents = plan, worker.index, worker.documents
        self._traffic, self._new_tokens, recipe = worker.traffic, worker.new_tokens, plan.recipe
        reader = PieceReader(worker.documents, worker.held, plan.position)
        self._tail = TailReader(recipe.corpus, worker.documents, reader)
        self._packing = recipe.packing
        self._framing = replace(recipe.framing, pad=plan.delivery.pad_id)
        self._dealt = (
            None
            if plan.share.has_whole_lanes
            else DealtRows(plan, worker.index, worker.documents, reader)
        )
        self._first_dry, self._is_awaited = NEVER, True

    @cached_property
    def _lanes(self) -> LaneReader:
        return LaneReader(self._plan, self._worker, self._documents)

    def blocks(self) -> Iterator[Block]:
        plan = self._plan
        if plan.has_jumped and self._worker == 0:
            check_some_lengths(plan.recipe, self._documents)
        if plan.phase.request is not None:
            yield from self._answer(plan.phase.request)
            return
        for start, stop in plan.replays():
            yield self._make_block(start, [stop], keeps_tokens=False)
        step, pause = plan.share.global_batch, plan.phase.pause
        first, count, most_batches = plan.position.rows, 1, limit_batches(plan.inputs, plan.share)
        while first < pause:
            stop = first + min(count, (pause - first) // step) * step
            yield self._make_block(first, list(range(first + step, stop + 1, step)))
            self._is_awaited = False
            first, count = stop, min(2 * count, most_batches)

    def _answer(self, request: Request) -> Iterator[Block]:
        if request.documents is None:
            yield self._measure()
        else:
            own = request.documents[self._worker]
            yield from map(self._share, np.array_split(own, request.num_blocks))

    def _measure(self) -> Block:
        plan, own = self._plan, self._plan.share.own_lanes(self._worker)
        block = BlockBuilder(own[:0], np.zeros(1, np.int64), self._packing, 0)
        block.lengths = self._tail.measure(plan.position, own, find_ends(plan)[own])
        return self._build(block, self._new_tokens(0, 0))

    def _share(self, documents: Ints) -> Block:
        """Make a block of the tokens of `documents`, int64 [documents, 3], as in `Request`."""
        tokens = self._new_tokens(1, int(documents[:, -1].sum()))
        fill_rows(tokens, self._tail.read_whole(documents), self._framing)
        rows = np.empty(0, np.int64)
        return self._build(BlockBuilder(rows, np.zeros(1, np.int64), self._packing, 0), tokens)

    def _make_block(self, start: int, stops: list[int], *, keeps_tokens: bool = True) -> Block:
        """Make this worker's part of consecutive batches.

        The first batch begins at row `start`, and batch `i` ends before row `stops[i]`.
        """
        plan, dealt = self._plan, None
        if plan.share.is_balanced and keeps_tokens:
            assert self._dealt is not None
            dealt = self._dealt.deal(start, stops[-1])
            rows = dealt[:, 0]
        else:
            rows = plan.share.worker_rows(self._worker, start, stops[-1])
        # a batch's rows need not ascend
        batches = np.searchsorted(stops, rows, side="right")
        bounds = np.searchsorted(batches, np.arange(len(stops) + 1))
        tokens = self._new_tokens(len(rows) if keeps_tokens else 0, self._packing.seq_len)
        block = BlockBuilder(rows, bounds, self._packing, len(plan.recipe.labels), dealt)
        if self._first_dry == NEVER:
            self._cut(block, num_batches=len(stops))
            cut = block.join()
            if keeps_tokens:
                lengths = fill_rows(tokens, cut, self._framing)
                change_rows(plan.recipe, tokens, lengths, rows)
                block.spans = list_spans(cut)
            else:
                lengths = row_lengths(cut.pieces, len(rows))
            block.count_tokens(cut, lengths, self._padding_streams(rows), self._first_dry)
        return self._build(block, tokens)

    def _build(self, block: BlockBuilder, tokens: Tokens) -> Block:
        return block.build(tokens, self._first_dry, self._traffic, self._documents.take_doubts())

    def _padding_streams(self, rows: Ints) -> Ints:
        """The stream whose statistics count each row's padding: int64 [rows].

        This is the first stream of the row's component.
        """
        recipe = self._plan.recipe
        firsts = np.array([component.streams.start for component in recipe.components])
        streams: Ints = firsts[recipe.components_of(rows)]
        return streams

    def _cut(self, block: BlockBuilder, *, num_batches: int) -> None:
        """Cut each of the block's rows before the end of the run from a lane, or from the tail of
        the row's stream."""
        tails = self._plan.tails
        if tails is None:
            self._cut_lanes(block, np.arange(len(block.rows)), num_batches)
            return
        rows = block.rows[: int(np.searchsorted(block.rows, tails.ending.end))]
        components = self._plan.recipe.components_of(rows)
        is_in_tail = tails.is_in_tail(components, rows)
        self._cut_lanes(block, np.flatnonzero(~is_in_tail), num_batches)
        if is_in_tail.any():
            cut = self._tail.cut(tails, components[is_in_tail], rows[is_in_tail])
            block.take(cut, np.flatnonzero(is_in_tail))

    def _cut_lanes(self, block: BlockBuilder, indices: Ints, num_batches: int) -> None:
        """Cut rows from their lanes. `indices` (int64 [rows]) are their indices in the block."""
        if self._dealt is None:
            self._cut_own_lanes(block, indices, num_batches)
        else:
            block.take(self._dealt.read(block.rows[indices], is_awaited=self._is_awaited), indices)

    def _cut_own_lanes(self, block: BlockBuilder, indices: Ints, num_batches: int) -> None:
        """Cut rows of the block from their lanes, which this worker owns.

        Example: rows 0 to 5 belong to lanes 0 1 2 0 1 2, and lane 1 has only one row left. The rows
        cut, lane by lane, are block rows 0 3 1 2 5, and row 4 is the first dry row.
        """
        recipe, rows = self._plan.recipe, block.rows[indices]
        flat_lanes = recipe.components_of(rows) * recipe.num_lanes + rows % recipe.num_lanes
        lanes, wanted = np.unique(flat_lanes, return_counts=True)
        try:
            cut = self._lanes.cut(
                lanes, wanted, num_batches=num_batches, is_awaited=self._is_awaited
            )
        except ValueError as error:
            raise StreamChangedError(
                f"{error}. The state is damaged, or was saved with a different corpus, tokenizer "
                "or transform, or the transform is not deterministic. Load an earlier state, "
                "restore the data and the config, or fix the transform"
            ) from None
        block_rows = indices[np.argsort(flat_lanes, kind="stable")]
        is_cut = count_within(wanted) < np.repeat(cut.num_rows, wanted)
        dry = block.rows[block_rows[~is_cut]]
        self._first_dry = min(self._first_dry, int(dry.min(initial=NEVER)))
        block.take(cut, block_rows[is_cut])


def check_some_lengths(recipe: Recipe, documents: LaneDocuments) -> None:
    """Compare the lengths of some documents of a run's corpus with their texts.

        groups of shards ─► up to 16 ─► a shard of each ─► its first samples ─► lengths compared

    A seek jumps over documents, so a wrong length among them would move every later row. A document
    that is read is always compared with its length. The choice of the sample depends only on the
    data. Only the bytes of a shard's first 4 documents are read.

    Raises `DatasetError` if a length differs or a document cannot be read. If a store cannot be
    reached, logs this and skips the remaining checks.
    """
    corpus = recipe.corpus
    try:
        for shard, samples in choose_samples(corpus):
            own = samples if recipe.selection is None else samples[recipe.selection.of(samples)]
            if len(own):
                with open_shard_start(*corpus.find_shard(shard), _SAMPLES_OF_SHARD) as start:
                    documents.compare(own, DocumentReader(recipe, OneShard(start)))
    except StoreError as error:
        logger.info(
            "token lengths were not checked before moving to the new position, because of a store "
            "error: %s",
            error,
        )


def choose_samples(corpus: Corpus) -> Iterator[tuple[int, Ints]]:
    """Yield up to 16 shards to check, and the samples to check in each: int64 [samples]."""
    groups = [
        (stream, group)
        for stream, dataset in enumerate(corpus.datasets)
        for group in lengths_index.cut_groups(dataset.table, lengths_index.LengthsKey("", "", ""))
        if group.samples
    ]
    # check one shard of each of up to 16 groups, at equal distances. A group's digest chooses among
    # its shards with samples, so all processes check the same one
    first_shards = np.cumsum([0, *(len(dataset.shards) for dataset in corpus.datasets)])
    chosen = np.unique(np.linspace(0, len(groups) - 1, _MOST_SHARDS).astype(np.int64))
    for stream, group in (groups[index] for index in chosen.tolist()):
        sizes = corpus.datasets[stream].table.samples
        full = group.first + np.flatnonzero(sizes[group.first : group.stop])
        within = int(full[int(group.digest, 16) % len(full)])
        shard = int(first_shards[stream]) + within
        first = int(corpus.shard_starts[shard])
        yield shard, np.arange(first, first + min(_SAMPLES_OF_SHARD, int(sizes[within])))
