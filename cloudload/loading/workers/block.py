"""A block: one worker's rows of several consecutive batches.

rows of the block    3 7 11 | 15 19 23          two batches, bounds 0 3 6
cut from lanes       CutRows ┐
cut from tails       CutRows ┴─► BlockBuilder ─► CutRows, sorted by row ─► tokens, spans
progress             cursors and residues after each row, counts of each batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cloudload.data import FirstFetch, TrafficCounter
from cloudload.order import RankShare
from cloudload.rows import Packing, tables
from cloudload.run import RunInputs
from cloudload.stats import (
    COUNTS,
    DESELECTED,
    PADDING,
    TOKENS,
    TRUNCATED,
    Traffic,
)
from cloudload.system import NEVER, Ints, Tokens

# maximum rows per block if a row has up to `_TOKENS_OF_ROW` tokens: large enough to amortize fixed
# costs, small enough to keep latency low
_ROWS_AT_ONCE, _ROWS_AT_ONCE_IF_FAST = 128, 1024
_TOKENS_OF_ROW = 2_048

NUM_DEALT_COLUMNS = 2


def limit_batches(inputs: RunInputs, share: RankShare) -> int:
    """Return the maximum number of batches in a block, the same for every worker."""
    recipe = inputs.recipe
    most = _ROWS_AT_ONCE_IF_FAST if inputs.backend.is_fast else _ROWS_AT_ONCE
    rows_of_worker = -(-share.shape.rank_rows // share.num_workers)
    most = min(most, most * _TOKENS_OF_ROW // recipe.packing.seq_len)
    return max(1, most // rows_of_worker)


def limit_blocks_ahead(prefetch_batches: int, most_batches: int) -> int:
    """Return the maximum number of finished blocks by which a worker may be ahead of the training
    loop. `most_batches` is the maximum number of batches in a block."""
    return max(2, -(-prefetch_batches // most_batches))


@dataclass(frozen=True)
class Block:
    """One worker's part of several consecutive batches of its rank."""

    bounds: Ints
    """int64 [batches + 1]: batch `i` has the rows `bounds[i] ≤ row < bounds[i + 1]` of the
    block."""
    tokens: Tokens
    """int32 [rows, seq_len], in ascending order of rows; [0, seq_len] for replayed rows. The answer
    to a `Request` has [0, 0] if it is sizes, and [1, tokens] if it is documents."""
    lengths: Ints
    """int64 [rows]: the number of tokens in each row; the rest is padding. In an answer with sizes,
    those of documents, int64 [documents]."""
    cursors: Ints
    """int64 [rows, 3]: the lane's cursor after each row; zeros for rows of the tail."""
    residues: list[bytes]
    """The lane's residue after each row; empty if the packing has no residue."""
    spans: Ints
    """int64 [spans, 6], with columns `tables.SPAN_COLUMNS`; rows are indices within the block."""
    counts: Ints
    """int64 [batches, streams, counts]: each batch's statistics, to add to those of the run."""
    traffic: Traffic
    """The traffic of the worker's shard cache since its last block."""
    first_fetch: FirstFetch | None
    """The first shard that the worker fetched; set in only one block."""
    first_dry: int
    """The first of the worker's rows, as an index in the run, that its lane could not fill; `NEVER`
    if there is none so far. This row and all later ones are invalid."""
    dealt: Ints
    """int64 [rows, 2]: the index of each row in the run, and its index among the rank's rows of the
    batch. Empty unless the batches are balanced, because the rank's share determines both."""
    doubts: Mapping[int, str] = field(default_factory=dict)
    """Warnings about streams whose documents do not look like text, by stream index."""

    @property
    def num_batches(self) -> int:
        """Number of batches; 1 for a block of sizes."""
        return max(1, len(self.bounds) - 1)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the rows, excluding padding."""
        return int(self.counts[..., TOKENS].sum())

    def rows_of(self, batch: int) -> slice:
        """The rows of the batch with index `batch`, as a slice of the block's rows."""
        return slice(*self._row_bounds[batch : batch + 2])

    def spans_between(self, rows: slice) -> Ints:
        """The spans of some of the block's rows, whose rows are still indices in the block."""
        bounds = self._span_bounds
        spans: Ints = self.spans[bounds[rows.start] : bounds[rows.stop]]
        return spans

    # one list of ints: the GC does not track ints, but would track a slice per batch
    @cached_property
    def _row_bounds(self) -> list[int]:
        bounds: list[int] = self.bounds.tolist()
        return bounds

    @cached_property
    def _span_bounds(self) -> list[int]:
        """For each row of the block, its first span; then the number of spans."""
        rows = np.arange(len(self.lengths) + 1)
        bounds: list[int] = np.searchsorted(self.spans[:, tables.SPAN_ROW], rows).tolist()
        return bounds

    @cached_property
    def is_full(self) -> bool:
        """Whether no row has padding."""
        return bool(self.lengths.min(initial=NEVER) >= self.tokens.shape[1])


def add_reports(block: Block, dropped: Sequence[Block]) -> Block:
    """Add the traffic and the doubts of dropped blocks to a later block, so that none are lost."""
    if not dropped:
        return block
    traffic, doubts = block.traffic, dict(block.doubts)
    for each in dropped:
        traffic, doubts = traffic + each.traffic, {**doubts, **each.doubts}
    return replace(block, traffic=traffic, doubts=doubts)


def join_dealt(blocks: Sequence[Block], batch: int) -> tuple[Ints, list[slice | Ints]]:
    """The rows of a batch that were dealt to a rank, from the blocks of its workers.

    Returns their indices in the run, int64 [rows], and for each worker, the indices of its rows
    within these: int64 [rows], or a slice if there is only one worker.
    """
    parts = [block.dealt[block.rows_of(batch)] for block in blocks]
    if len(parts) == 1:
        return parts[0][:, 0], [slice(None)]
    joined = np.concatenate(parts)
    rows = np.empty(len(joined), np.int64)
    rows[joined[:, 1]] = joined[:, 0]
    return rows, [part[:, 1] for part in parts]


class BlockBuilder:
    """Collects the rows of a block, and their cursors, residues and statistics.

    `rows` is int64 [rows], indices in the run; `bounds` and `dealt` are as in `Block`.
    """

    def __init__(
        self,
        rows: Ints,
        bounds: Ints,
        packing: Packing,
        num_streams: int,
        dealt: Ints | None = None,
    ) -> None:
        self.rows, self._bounds, self._packing = rows, bounds, packing
        self._dealt = np.empty((0, NUM_DEALT_COLUMNS), np.int64) if dealt is None else dealt
        self._batches = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        """The index of each row's batch: int64 [rows]."""
        self._cursors = np.zeros((len(rows), tables.NUM_CURSOR_COLUMNS), np.int64)
        self._residues = [b""] * len(rows) if packing.has_residue else []
        self._counts = np.zeros((len(bounds) - 1, num_streams, len(COUNTS)), np.int64)
        self.lengths = np.zeros(len(rows), np.int64)
        self.spans = np.empty((0, len(tables.SPAN_COLUMNS)), np.int64)
        self._taken: list[tables.CutRows] = []

    def take(self, cut: tables.CutRows, block_rows: Ints) -> None:
        """Take rows, which become rows `block_rows` (int64 [rows]) of the block.

        Records their cursors, residues and counts. Overwrites `cut.pieces`.
        """
        if len(cut.cursors):
            self._cursors[block_rows] = cut.cursors
        if cut.residues is not None:
            for block_row, residue in zip(block_rows.tolist(), cut.residues, strict=True):
                self._residues[block_row] = residue
        rows, streams, counts, sizes = cut.counted.T
        self._tally(block_rows[rows], streams, counts, 1)
        rows_past, streams_past, numbers = cut.passed.T
        self._tally(block_rows[rows_past], streams_past, DESELECTED, numbers)
        if self._packing.cuts:
            cut_off = np.maximum(0, sizes - self._packing.seq_len)
            self._tally(block_rows[rows], streams, TRUNCATED, cut_off)
        cut.pieces[:, tables.PIECE_ROW] = block_rows[cut.pieces[:, tables.PIECE_ROW]]
        self._taken.append(cut)

    def join(self) -> tables.CutRows:
        """Join all rows that were taken. Their pieces are sorted by block row."""
        first, parts = 0, [np.empty((0, tables.NUM_PIECE_COLUMNS), np.int64)]
        for cut in self._taken:
            cut.pieces[:, tables.PIECE_DOCUMENT] += first
            parts.append(cut.pieces)
            first += len(cut.documents.table)
        pieces = np.concatenate(parts)
        if (np.diff(pieces[:, tables.PIECE_ROW]) < 0).any():
            pieces = pieces[np.argsort(pieces[:, tables.PIECE_ROW], kind="stable")]
        documents = tables.join_documents([cut.documents for cut in self._taken])
        return tables.CutRows(documents, pieces)

    def count_tokens(
        self, cut: tables.CutRows, lengths: Ints, padding_streams: Ints, first_dry: int
    ) -> None:
        """Count the tokens of rows, and the padding of rows before row `first_dry` of the run.

        `lengths` and `padding_streams` are int64 [rows]: the number of tokens in each row, and the
        stream whose statistics count its padding.
        """
        rows, documents, starts, stops = cut.pieces.T
        self._tally(rows, cut.documents.table[documents, tables.STREAM], TOKENS, stops - starts)
        self.lengths = lengths
        short = np.flatnonzero((lengths < self._packing.seq_len) & (self.rows < first_dry))
        self._tally(short, padding_streams[short], PADDING, self._packing.seq_len - lengths[short])

    def _tally(
        self, block_rows: Ints, streams: Ints, counts: Ints | int, amounts: Ints | int
    ) -> None:
        """Add amounts to the counts of the batches that contain these rows."""
        _, num_streams, num_counts = self._counts.shape
        cells = (self._batches[block_rows] * num_streams + streams) * num_counts + counts
        np.add.at(self._counts.reshape(-1), cells, amounts)

    def build(
        self, tokens: Tokens, first_dry: int, traffic: TrafficCounter, doubts: Mapping[int, str]
    ) -> Block:
        """Build the block. `tokens` is int32 [rows, seq_len]. Takes and resets the counts of
        `traffic`."""
        return Block(
            bounds=self._bounds,
            tokens=tokens,
            lengths=self.lengths,
            cursors=self._cursors,
            residues=self._residues,
            spans=self.spans,
            counts=self._counts,
            traffic=traffic.take(),
            first_fetch=traffic.take_first_fetch(),
            first_dry=first_dry,
            dealt=self._dealt,
            doubts=doubts,
        )
