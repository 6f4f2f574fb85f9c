"""Send a block from a worker to the training process through a slot of shared memory.

slot    tokens [rows, seq_len] | header | bounds, lengths, …, sizes of residues | residues
sent    PackedBlock: the slot, the sizes of its parts, and any part that did not fit in the slot
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cloudload.data import FirstFetch
from cloudload.loading.workers.block import NUM_DEALT_COLUMNS, Block
from cloudload.rows import split_residues, tables
from cloudload.stats import COUNTS, Traffic
from cloudload.system import SharedMemoryRing, Tokens

# bytes that a slot reserves for the spans, cursor and residue of each row
_EXTRA_BYTES_PER_ROW = 1024


@dataclass(frozen=True)
class PackedBlock:
    """The message that describes a block in shared memory.

    The slot contains the block's tokens and, after them, the rest of the block, if they fit.
    """

    slot: int
    """The index of the slot."""
    shape: tuple[int, int]
    """The shape of the tokens: [rows, seq_len]."""
    size: int
    """The size of the rest of the block, in bytes."""
    tokens: bytes | None = None
    """The tokens as int32 bytes, if they did not fit in the slot."""
    first_fetch: FirstFetch | None = None
    """See `Block`."""
    rest: bytes | None = None
    """The rest of the block, if it or the tokens did not fit in the slot."""
    doubts: Mapping[int, str] = field(default_factory=dict)
    """See `Block`."""


def measure_slot(rows: int, num_workers: int, seq_len: int) -> int:
    """Return the size, in bytes, of a slot that fits nearly every block.

    `num_workers` workers share the `rows` of their blocks.
    """
    own = min(rows, -(-rows // num_workers) * 5 // 4 + 1)
    return own * (4 * seq_len + _EXTRA_BYTES_PER_ROW) + (1 << 14)


class Slots:
    """The `count` slots of one worker, from slot `first` on, used in turn.

    Once all slots are in use, `await_free` is called to wait until the oldest one is free.
    """

    def __init__(
        self, ring: SharedMemoryRing, first: int, count: int, await_free: Callable[[], object]
    ) -> None:
        self._ring, self._own, self._await_free = ring, range(first, first + count), await_free
        self.reset()

    def reset(self) -> None:
        """Mark all slots as free."""
        self._slots, self._num_free = itertools.cycle(self._own), len(self._own)
        self._slot = self._own.start

    def new_tokens(self, num_rows: int, seq_len: int) -> Tokens:
        """Allocate the next block's tokens: int32 [rows, seq_len], in its slot if they fit."""
        if self._num_free:
            self._num_free -= 1
        else:
            self._await_free()
        self._slot = next(self._slots)
        if 4 * num_rows * seq_len > self._ring.slot_bytes:
            return np.empty((num_rows, seq_len), np.int32)
        return self._ring.array(self._slot, np.int32, (num_rows, seq_len))

    def pack(self, block: Block) -> PackedBlock:
        """Write the rest of a block after its tokens if it fits, and return the message to send."""
        sizes = np.array([len(residue) for residue in block.residues], np.int64)
        arrays = [block.bounds, block.lengths, block.cursors, block.spans, block.counts]
        arrays += [block.dealt, sizes]
        lengths = [array.size for array in arrays]
        header = np.array([*lengths, block.first_dry, *block.traffic], np.int64)
        values = np.concatenate([header, *(array.ravel() for array in arrays)])
        rest = b"".join([values.tobytes(), *block.residues])
        num_rows, seq_len = block.tokens.shape
        packed = PackedBlock(
            self._slot,
            (num_rows, seq_len),
            len(rest),
            first_fetch=block.first_fetch,
            doubts=block.doubts,
        )
        used = block.tokens.nbytes
        if used > self._ring.slot_bytes:
            return replace(packed, tokens=block.tokens.tobytes(), rest=rest)
        if used + len(rest) > self._ring.slot_bytes:
            return replace(packed, rest=rest)
        self._ring.slot(self._slot)[used : used + len(rest)] = rest
        return packed


_NUM_ARRAYS = 7
_HEADER = _NUM_ARRAYS + 1 + len(Traffic._fields)


def unpack_block(packed: PackedBlock, ring: SharedMemoryRing) -> Block:
    """Unpack a block. Tokens in a slot are not copied: they are valid until the next block is
    requested."""
    rows, seq_len = packed.shape
    # the rest follows the tokens in the slot unless it did not fit
    rest = packed.rest
    if rest is None:
        used = 4 * rows * seq_len
        rest = bytes(ring.slot(packed.slot)[used : used + packed.size])
    if packed.tokens is None:
        tokens = ring.array(packed.slot, np.int32, packed.shape)
    else:
        tokens = np.frombuffer(packed.tokens, np.int32).reshape(packed.shape)
    # the header has the sizes of the arrays, which follow it in order; residues come last
    header = np.frombuffer(rest, np.int64, _HEADER).tolist()
    stops = list(itertools.accumulate(header[:_NUM_ARRAYS], initial=_HEADER))
    body = np.frombuffer(rest, np.int64, stops[-1])
    bounds, lengths, cursors, spans, counts, dealt, sizes = np.split(body, stops)[1:-1]
    num_streams = len(counts) // max(1, (len(bounds) - 1) * len(COUNTS))
    return Block(
        bounds=bounds,
        tokens=tokens,
        lengths=lengths,
        cursors=cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS),
        residues=split_residues(rest[8 * stops[-1] :], sizes.tolist()),
        spans=spans.reshape(-1, len(tables.SPAN_COLUMNS)),
        counts=counts.reshape(len(bounds) - 1, num_streams, len(COUNTS)),
        traffic=Traffic(*header[_NUM_ARRAYS + 1 :]),
        first_fetch=packed.first_fetch,
        first_dry=header[_NUM_ARRAYS],
        dealt=dealt.reshape(-1, NUM_DEALT_COLUMNS),
        doubts=packed.doubts,
    )
