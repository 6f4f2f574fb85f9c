"""How a block crosses from a worker to the training process: in a slot of the ring; what is sent is
where it lies.

slot    tokens [rows, seq_len] | bounds, lengths, cursors, spans, counts | residues
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cloudload.arrays import Tokens
from cloudload.packing.residue import split_residues
from cloudload.packing.tables import SPAN_COLUMNS
from cloudload.stats import COUNTS, Traffic
from cloudload.system.shared_memory import SharedMemoryRing
from cloudload.workers.block import Block
from cloudload.workers.plan import Plan

# beside the tokens of a row, in a slot: its spans, cursor, and residue
_EXTRA_BYTES_PER_ROW = 1024


@dataclass(frozen=True)
class PackedBlock:
    """Where a block lies: tokens at the start of a slot, and all else behind them. What did not fit
    comes along."""

    slot: int
    shape: tuple[int, int]
    size: int
    """Bytes of all else."""
    tokens: bytes | None = None
    rest: bytes | None = None


def slot_bytes(plan: Plan) -> int:
    rows = plan.delivery.batch_size * plan.batches_at_once
    own = min(rows, -(-rows // plan.num_workers) * 5 // 4 + 1)
    return own * (4 * plan.recipe.config.seq_len + _EXTRA_BYTES_PER_ROW) + (1 << 14)


class Slots:
    """The slots of one worker, `first` and those after it; once all are used, `await_free` waits
    for the oldest."""

    def __init__(
        self, ring: SharedMemoryRing, first: int, count: int, await_free: Callable[[], object]
    ) -> None:
        self._ring, self._slots, self._number = (
            ring,
            itertools.cycle(range(first, first + count)),
            first,
        )
        self._num_free, self._await_free = count, await_free

    def new_tokens(self, num_rows: int, seq_len: int) -> Tokens:
        """The tokens of the next block: in the next slot, where they fit."""
        if self._num_free:
            self._num_free -= 1
        else:
            self._await_free()
        self._number = next(self._slots)
        if 4 * num_rows * seq_len > self._ring.slot_bytes:
            return np.empty((num_rows, seq_len), np.int32)
        return self._ring.array(self._number, np.int32, (num_rows, seq_len))

    def pack(self, block: Block) -> PackedBlock:
        """Put all else of the block behind its tokens."""
        sizes = np.array([len(residue) for residue in block.residues], np.int64)
        shape = [
            len(block.bounds),
            len(block.lengths),
            len(block.cursors),
            len(block.spans),
            block.counts.shape[1],
            len(sizes),
        ]
        head = np.array([*shape, block.first_dry, *block.traffic], np.int64)
        arrays = [block.bounds, block.lengths, block.cursors, block.spans, block.counts, sizes]
        numbers = np.concatenate([head, *(array.ravel() for array in arrays)])
        rest = b"".join([numbers.tobytes(), *block.residues])
        packed = PackedBlock(
            self._number, (block.tokens.shape[0], block.tokens.shape[1]), len(rest)
        )
        used = block.tokens.nbytes
        if used > self._ring.slot_bytes:
            return replace(packed, tokens=block.tokens.tobytes(), rest=rest)
        if used + len(rest) > self._ring.slot_bytes:
            return replace(packed, rest=rest)
        self._ring.slot(self._number)[used : used + len(rest)] = rest
        return packed


_HEAD = 7 + len(Traffic._fields)


def unpack_block(packed: PackedBlock, ring: SharedMemoryRing) -> Block:
    """The block; its tokens are the slot's, and good until the next block of the worker is asked
    for."""
    rows, seq_len = packed.shape
    rest = packed.rest
    if rest is None:
        used = 4 * rows * seq_len
        rest = bytes(ring.slot(packed.slot)[used : used + packed.size])
    if packed.tokens is None:
        tokens = ring.array(packed.slot, np.int32, packed.shape)
    else:
        tokens = np.frombuffer(packed.tokens, np.int32).reshape(packed.shape)
    head = np.frombuffer(rest, np.int64, _HEAD).tolist()
    num_bounds, num_lengths, num_cursors, num_spans, num_streams, num_sizes, first_dry, *traffic = (
        head
    )
    counts_shape = (num_bounds - 1, num_streams, len(COUNTS))
    numbers = [
        num_bounds,
        num_lengths,
        2 * num_cursors,
        num_spans * len(SPAN_COLUMNS),
        math.prod(counts_shape),
        num_sizes,
    ]
    stops = list(itertools.accumulate(numbers, initial=_HEAD))
    body = np.frombuffer(rest, np.int64, stops[-1])
    bounds, lengths, cursors, spans, counts, sizes = (
        body[start:stop] for start, stop in itertools.pairwise(stops)
    )
    return Block(
        bounds=bounds,
        tokens=tokens,
        lengths=lengths,
        cursors=cursors.reshape(-1, 2),
        residues=split_residues(rest[8 * stops[-1] :], sizes.tolist()),
        spans=spans.reshape(-1, len(SPAN_COLUMNS)),
        counts=counts.reshape(counts_shape),
        traffic=Traffic(*traffic),
        first_dry=first_dry,
    )
