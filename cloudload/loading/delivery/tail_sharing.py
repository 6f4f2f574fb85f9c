"""Compute the same tail on all ranks, and let workers read its documents for each other.

    each rank: sizes of the documents left in its lanes ─► one message ─► exchanged
    every rank: sizes by lane ─► packed as one sequence ─► the same Tail ─► documents in each row
    workers: documents of own lanes ─► this rank ─┬──────────────► its other workers
                                                  └─► exchanged ─► the workers of other ranks

    message    virtual index | number of discarded tokens | sizes of documents, by lane

Sizes are those at the position of the request, where the lanes ended. With token lengths, each rank
knows the sizes, so the messages do not contain any. Discarded tokens are the rank's
tokens before the dry row in the batch in which the lanes ended.

A row of the tail may have documents of any lane. If the worker of a row read all of the row's
documents, each machine would download the shards of all lanes. Each document would also be
tokenized twice: first by the owner of its lane, to measure it, and then for its row. So the owner
of a document's lane reads the document once, and sends its tokens. All ranks compute the same lists
from the tail, so they need not request documents. If the tail is large, only its first documents
are sent. Each worker reads the other documents of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloudload.loading.delivery.block_stream import BlockStream
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.workers.block import Block
from cloudload.loading.workers.worker_plan import Phase, Request, SharedDocuments, WorkerPlan
from cloudload.rows import tables
from cloudload.run import Position, Tails
from cloudload.stats import TOKENS
from cloudload.system import Flags, Ints, Tokens

_HEADER = 2

MOST_EXCHANGED_TOKENS, _MOST_LOCAL_TOKENS = 1 << 27, 1 << 26
_TOKENS_OF_BLOCK = 1 << 22
# the size of one round: int64 words, summed over the messages of all ranks
_WORDS_OF_ROUND = 1 << 22

Texts = dict[int, Tokens]
"""Maps the index of a document in `RemnantUses` to its tokens, including bos and eos."""


def join_sizes(plan: WorkerPlan, blocks: Sequence[Block], tokens_before_end: int) -> Ints:
    """Build this rank's message: int64 [n].

    `blocks` are the workers' blocks of sizes; empty if token lengths are known.
    `tokens_before_end` is the number of discarded tokens.
    """
    sizes: dict[int, Ints] = {}
    for worker, block in enumerate(blocks):
        lanes = plan.share.own_lanes(worker).tolist()
        stops = np.cumsum([_num_left(plan, lane) for lane in lanes])
        sizes.update(zip(lanes, np.split(block.lengths, stops[:-1]), strict=True))
    header = np.array([plan.share.index, tokens_before_end], np.int64)
    return np.concatenate([header, *(sizes[lane] for lane in sorted(sizes))])


def find_sizes(plan: WorkerPlan, messages: Sequence[Ints]) -> Sequence[Ints]:
    """Return the sizes of the documents left in each lane, from the messages of all ranks.

    Token lengths replace the messages. Raises `StreamChangedError` if the position does not match
    the lengths.
    """
    if plan.inputs.lengths is None:
        return _sizes_by_lane(plan, messages)
    [walker] = plan.inputs.open_run_lengths().walkers
    return walker.measure_rest(plan.position.cursors[0])


def sum_tokens(messages: Sequence[Ints]) -> int:
    """Return the number of tokens that all ranks discarded, from their messages."""
    return sum(int(message[1]) for message in messages)


def count_rest(plan: WorkerPlan, position: Position, discarded: int) -> tuple[int, Ints]:
    """Return the number of tokens that are left over when a run ends at a position.

    Also returns the statistics of the documents that are not counted with any row: int64 [streams,
    counts]. `discarded` is the number of tokens, on all ranks, in rows that were discarded although
    the lanes filled them. It is not used if token lengths determined the end.
    """
    tails = plan.tails
    assert tails is not None
    ending, rows = tails.ending, position.rows
    if rows >= ending.end:
        return 0, tails.count_rest(position)
    if ending.packed is None:
        arrays = tails.advance(position, ending.end)
        assert arrays is not None
        left = int((arrays.counts - position.counts)[:, TOKENS].sum())
    else:
        first = ending.lane_ends[0]
        left = tails.tail(0).num_tokens(tails.count_rows(0, max(rows, first)))
        left += discarded if rows < first else 0
    return left, np.zeros_like(position.counts)


def _sizes_by_lane(plan: WorkerPlan, messages: Sequence[Ints]) -> list[Ints]:
    sizes: list[Ints] = [np.empty(0, np.int64)] * plan.recipe.num_lanes
    for message in messages:
        lanes = np.flatnonzero(plan.share.owners == message[0]).tolist()
        stops = _HEADER + np.cumsum([_num_left(plan, lane) for lane in lanes])
        parts = np.split(message, [_HEADER, *stops.tolist()])[1:-1]
        for lane, part in zip(lanes, parts, strict=True):
            sizes[lane] = part
    return sizes


def _num_left(plan: WorkerPlan, lane: int) -> int:
    """Return the number of ordinals, including holes, left in a lane at the plan's position."""
    end = int(plan.recipe.components[0].lanes.ends[lane])
    return end - int(plan.position.cursors[0, lane, tables.CURSOR_ORDINAL])


def share_documents(plan: WorkerPlan, blocks: BlockStream, exchange: Exchange) -> None:
    """Read and exchange documents of the tail, and send them to the workers whose rows need them.

    Includes only rows from the plan's position on. All ranks must call this together. Raises the
    errors of the workers and of `Exchange.start`.
    """
    assert plan.tails is not None
    uses = RemnantUses(plan, plan.tails)
    if not len(uses.documents):
        return
    texts = _read_own(plan, uses, blocks)
    texts |= _receive(plan, uses, texts, exchange)
    blocks.give(tuple(uses.join(worker, texts) for worker in range(plan.share.num_workers)))


class RemnantUses:
    """The documents in the tail's rows from the plan's position on, and the rows that use them.

    A use is one document in one row.
    """

    def __init__(self, plan: WorkerPlan, tails: Tails) -> None:
        tail, first = tails.tail(0), tails.ending.tail_start
        rows = first + tail.first_row + tail.pieces[:, tables.PIECE_ROW]
        is_left = (rows >= plan.position.rows) & (rows < _find_end(plan, tails.ending.end))
        used = tail.pieces[is_left, tables.PIECE_DOCUMENT]
        _, firsts, indices = np.unique(tail.keys[used], return_index=True, return_inverse=True)
        self.documents: Ints = tail.remnants[used[firsts]][
            :, [tables.REMNANT_LANE, tables.REMNANT_ORDINAL, tables.REMNANT_STOP]
        ]
        """int64 [documents, 3]: the lane, ordinal and size of each document."""
        self._in_order = np.argsort(firsts)
        """The documents in the order of the rows: int64 [documents]."""
        share, rank = plan.share, plan.share.index
        self._share, self._indices, self._rows = share, indices, rows[is_left]
        readers = self._rows % share.world_size
        self._is_here: Flags = readers == rank
        """Whether this rank packs the row of each use: bool [uses]."""
        lanes = self.documents[:, 0]
        self.owners: Ints = share.owners[lanes]
        """The rank that owns each document's lane, as a virtual index: int64 [documents]."""
        self._workers = share.worker_of(lanes)
        is_sent = self._used(readers != self.owners[indices])
        # an equal share for each rank, because all messages are padded to the longest one
        self._is_sent = self._limit(is_sent, MOST_EXCHANGED_TOKENS // share.world_size, self.owners)
        self._is_own: Flags = self.owners == rank
        is_elsewhere = share.worker_of(self._rows) != self._workers[indices]
        is_local = self._used(self._is_here & is_elsewhere)
        is_local &= self._is_own
        self._is_local = self._limit(is_local, _MOST_LOCAL_TOKENS, np.zeros_like(lanes))

    def _used(self, chosen: Flags) -> Flags:
        """Return which documents have a chosen use: bool [documents]. `chosen` is bool [uses]."""
        is_used = np.zeros(len(self.documents), np.bool_)
        is_used[self._indices[chosen]] = True
        return is_used

    def _limit(self, chosen: Flags, most_tokens: int, groups: Ints) -> Flags:
        """Return the first chosen documents of each group with at most `most_tokens` tokens.

        The order is that of the rows. `groups` has the group of each document, from 0: int64
        [documents]. Returns bool [documents].
        """
        order = self._in_order[np.argsort(groups[self._in_order], kind="stable")]
        sums = np.cumsum(np.where(chosen, self.documents[:, 2], 0)[order])
        firsts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        before = np.append(0, sums)[firsts]
        fits = np.empty_like(chosen)
        fits[order] = sums - np.repeat(before, np.diff(firsts, append=len(order))) <= most_tokens
        return chosen & fits

    def _list(self, chosen: Flags) -> Ints:
        """List the indices of the chosen documents, in the order of the rows: int64 [documents]."""
        indices: Ints = self._in_order[chosen[self._in_order]]
        return indices

    def read_by(self, worker: int) -> Ints:
        """List the documents that a worker reads for others, of any rank: int64 [documents]."""
        is_read = self._is_own & (self._is_sent | self._is_local)
        return self._list(is_read & (self._workers == worker))

    def sent_by(self, rank: int) -> Ints:
        """List the documents that a rank, given by its virtual index, sends: int64 [documents]."""
        return self._list(self._is_sent & (self.owners == rank))

    def received(self) -> Flags:
        """Return which documents this rank receives for its rows: bool [documents]."""
        return self._is_sent & ~self._is_own & self._used(self._is_here)

    def join(self, worker: int, texts: Texts) -> SharedDocuments:
        """Return the documents, with their tokens, that other workers read for a worker's rows."""
        is_used = self._used(self._is_here & (self._share.worker_of(self._rows) == worker))
        is_local = self._is_local & (self._workers != worker)
        indices = self._list(is_used & (is_local | (self._is_sent & ~self._is_own)))
        return SharedDocuments(self.documents[indices], _concatenate(texts, indices))


def _find_end(plan: WorkerPlan, end: int) -> int:
    """Return the row after the last row that a run with `end` rows delivers."""
    if plan.delivery.tail == "pad":
        return end
    return plan.share.end_whole_batches(plan.position.rows, end)


def _concatenate(texts: Texts, indices: Ints) -> Tokens:
    nothing = np.empty(0, np.int32)
    joined: Tokens = np.concatenate([nothing, *(texts[index] for index in indices.tolist())])
    return joined


def _read_own(plan: WorkerPlan, uses: RemnantUses, blocks: BlockStream) -> Texts:
    """Let the workers of this rank read documents of their lanes for other workers."""
    lists = [uses.read_by(worker) for worker in range(plan.share.num_workers)]
    sizes = [uses.documents[indices, 2] for indices in lists]
    if blocks.has_workers and not any(map(len, lists)):
        return {}
    num_blocks = max(1, *(-(-int(each.sum()) // _TOKENS_OF_BLOCK) for each in sizes))
    documents = tuple(uses.documents[indices] for indices in lists)
    blocks.discard()
    blocks.open(replace(plan, phase=Phase(plan.ending, request=Request(documents, num_blocks))))
    parts: list[list[Tokens]] = [[] for _ in lists]
    for _ in range(num_blocks):
        blocks.advance()
        for of_worker, block in zip(parts, blocks.current, strict=True):
            of_worker.append(block.tokens.ravel().copy())
    texts: Texts = {}
    for indices, each, of_worker in zip(lists, sizes, parts, strict=True):
        texts |= _split(indices, each, np.concatenate(of_worker))
    return texts


def _split(indices: Ints, sizes: Ints, tokens: Tokens) -> Texts:
    stops = np.cumsum(sizes)
    ends = zip(indices.tolist(), (stops - sizes).tolist(), stops.tolist(), strict=True)
    return {index: tokens[start:stop] for index, start, stop in ends}


def _receive(plan: WorkerPlan, uses: RemnantUses, own: Texts, exchange: Exchange) -> Texts:
    """Exchange documents between ranks, in rounds. Return the documents that this rank receives."""
    share = plan.share
    sent = [uses.sent_by(rank) for rank in range(share.world_size)]
    stops = [np.cumsum(uses.documents[indices, 2]) for indices in sent]
    num_words = max(-(-int(each.max(initial=0)) // 2) for each in stops)
    tokens = _concatenate(own, sent[share.index])
    message = np.zeros(num_words, np.int64)
    message.view(np.int32)[: len(tokens)] = tokens
    is_received = uses.received()
    texts = {
        index: np.empty(size, np.int32)
        for index, size in zip(
            np.flatnonzero(is_received).tolist(),
            uses.documents[is_received, 2].tolist(),
            strict=True,
        )
    }
    step = max(1, _WORDS_OF_ROUND // share.world_size)
    for first in range(0, num_words, step):
        words = message[first : first + step]
        for answer in exchange.start_equal(np.append(share.index, words))():
            rank, part = int(answer[0]), answer[1:].view(np.int32)
            _copy(texts, sent[rank], stops[rank], part, 2 * first)
    return texts


def _copy(texts: Texts, indices: Ints, stops: Ints, part: Tokens, start: int) -> None:
    """Copy `part`, one rank's tokens from token `start` on, into the documents in `texts`.

    `indices` are the documents that the rank sends, and `stops` the tokens at which they end: int64
    [documents].
    """
    low = int(np.searchsorted(stops, start, side="right"))
    begin = int(stops[low - 1]) if low else 0
    for index, stop in zip(indices[low:].tolist(), stops[low:].tolist(), strict=True):
        if begin >= start + len(part):
            return
        if (text := texts.get(index)) is not None:
            since, until = max(begin, start), min(stop, start + len(part))
            text[since - begin : until - begin] = part[since - start : until - start]
        begin = stop
