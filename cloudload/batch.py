"""What the training loop receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cloudload.arrays import NEVER, Ints
from cloudload.config import DeliveryConfig
from cloudload.segments import IGNORED_LABEL, cu_seqlens, mask_document_edges, position_ids, segment_ids
from cloudload.workers.block import Block

UNKNOWN = -1


class Batch(dict[str, torch.Tensor]):
    """`input_ids` and `labels`, int64 [batch_size, seq_len], as a model takes them: `model(**batch)`.

    `labels` are the same ids, -100 on padding (and, with `mask_edges`, on a document's first token); models shift them by
    themselves. What `fields` asks for stands beside them: `position_ids` and `segment_ids`, int64 [batch_size, seq_len];
    `cu_seqlens`, int32 [segments + 1], and `max_seqlen`, int32 [].

    `first_row` is the row of the run that the rank's first row is, `row_step` the distance to the next; `spans` says what the
    rows are made of: int64 [spans, 6] with the columns of `cloudload.packing.tables.SPAN_FIELDS` (row of the batch, stream, epoch, sample,
    start, stop). A copy that a framework makes of the tensors alone knows none of these.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        spans: Ints | SpanParts | None = None,
        first_row: int = UNKNOWN,
        row_step: int = UNKNOWN,
    ) -> None:
        super().__init__(tensors)
        self._spans, self.first_row, self.row_step = spans, first_row, row_step

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on another device."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.items()}
        return Batch(moved, self._spans, self.first_row, self.row_step)

    @property
    def spans(self) -> Ints:
        """What the rows are made of; joined when it is first asked for."""
        if self._spans is None:
            raise ValueError(
                "this is a copy of a batch's tensors, which knows no spans; ask the batch that the loader handed out"
            )
        if isinstance(self._spans, list):
            self._spans = _join_spans(self._spans)
        return self._spans

    @property
    def num_tokens(self) -> int:
        """Tokens of documents in its rows, without padding."""
        return int((self.spans[:, 5] - self.spans[:, 4]).sum())


SpanParts = list[tuple[Ints, int, slice | Ints]]
"""Spans of some rows of a block, the first of these rows, and where they stand in the batch."""


def _join_spans(parts: SpanParts) -> Ints:
    joined = []
    for spans, first_row, places in parts:
        own = spans.copy()
        own[:, 0] -= first_row
        if not isinstance(places, slice):
            own[:, 0] = places[own[:, 0]]
        joined.append(own)
    if len(joined) == 1:
        return joined[0]
    together = np.concatenate(joined)
    return together[np.argsort(together[:, 0], kind="stable")]


class Progress(NamedTuple):
    """What a batch's rows did to the lanes: cursors int64 [rows, 2] and residues after each row, and counts of all together.

    Residues are none where the packing has none.
    """

    cursors: Ints
    residues: list[bytes]
    counts: Ints
    first_dry: int


def join_progress(blocks: Sequence[Block], number: int, places: Sequence[slice | Ints], stop: int) -> Progress:
    """The progress of batch `number` of the workers' blocks, which ends before row `stop` of the run.

    `places` has the rows of the batch that are each worker's.
    """
    first_dry = min(block.first_dry for block in blocks)
    first_dry = first_dry if first_dry < stop else NEVER
    if len(blocks) == 1:
        [block] = blocks
        rows = block.rows_of(number)
        return Progress(block.cursors[rows], block.residues[rows], block.counts[number], first_dry)
    parts = [(block.cursors[block.rows_of(number)], block.residues[block.rows_of(number)]) for block in blocks]
    num_rows = sum(len(cursors) for cursors, _ in parts)
    cursors = np.empty((num_rows, 2), np.int64)
    residues = [b""] * num_rows if any(block.residues for block in blocks) else []
    for (own_cursors, own_residues), own in zip(parts, places, strict=True):
        cursors[own] = own_cursors
        if residues:
            for place, residue in zip(np.arange(num_rows)[own].tolist(), own_residues, strict=True):
                residues[place] = residue
    counts: Ints = np.sum([block.counts[number] for block in blocks], axis=0)
    return Progress(cursors, residues, counts, first_dry)


def join_blocks(
    blocks: Sequence[Block], number: int, places: Sequence[slice | Ints], rows: range, delivery: DeliveryConfig
) -> Batch:
    """Batch `number` of the workers' blocks: these `rows` of the run, of which each worker has those at its `places`."""
    shape = len(rows), blocks[0].tokens.shape[1]
    pin_memory = delivery.pin_memory and torch.cuda.is_available()
    input_ids, labels = (_new_tensor(shape, pin_memory) for _ in range(2))
    # filled through numpy: torch would wake a thread for every core
    ids, targets = input_ids.numpy(), labels.numpy()
    parts: SpanParts = []
    is_full = True
    for block, own in zip(blocks, places, strict=True):
        of_batch = block.rows_of(number)
        ids[own] = block.tokens[of_batch]
        parts.append((block.spans[block.spans_of(number)], of_batch.start, own))
        is_full = is_full and block.is_full
    targets[:] = ids
    batch = Batch({"input_ids": input_ids, "labels": labels}, parts, rows.start, rows.step)
    if not is_full:
        _mask_padding(targets, blocks, number, places)
    if delivery.mask_edges or delivery.fields:
        span_rows, span_lengths = batch.spans[:, 0], batch.spans[:, 5] - batch.spans[:, 4]
        if delivery.mask_edges:
            mask_document_edges(targets, span_rows, span_lengths)
        fields = _fields(delivery.fields, span_rows, span_lengths, shape)
        batch.update({name: tensor.pin_memory() if pin_memory else tensor for name, tensor in fields.items()})
    return batch


def _new_tensor(shape: tuple[int, int], pin_memory: bool) -> torch.Tensor:
    # numpy is several times as quick to make an array
    return torch.empty(shape, dtype=torch.int64, pin_memory=True) if pin_memory else torch.from_numpy(np.empty(shape, np.int64))


def _mask_padding(
    labels: np.ndarray[Any, np.dtype[np.int64]], blocks: Sequence[Block], number: int, places: Sequence[slice | Ints]
) -> None:
    lengths = np.empty(len(labels), np.int64)
    for block, own in zip(blocks, places, strict=True):
        lengths[own] = block.lengths[block.rows_of(number)]
    for row, length in enumerate(lengths.tolist()):
        labels[row, length:] = IGNORED_LABEL


def _fields(fields: Sequence[str], rows: Ints, lengths: Ints, shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    tensors = {}
    if "position_ids" in fields:
        tensors["position_ids"] = torch.from_numpy(position_ids(rows, lengths, shape))
    if "segment_ids" in fields:
        tensors["segment_ids"] = torch.from_numpy(segment_ids(rows, lengths, shape))
    if "cu_seqlens" in fields:
        ends, longest = cu_seqlens(rows, lengths, shape)
        tensors["cu_seqlens"], tensors["max_seqlen"] = torch.from_numpy(ends), torch.tensor(longest, dtype=torch.int32)
    return tensors
