"""What the training loop receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cloudload.config import DeliveryConfig
from cloudload.lanes import Ints
from cloudload.plan import Block
from cloudload.segments import IGNORED_LABEL, cu_seqlens, mask_document_edges, position_ids, segment_ids


class Batch(dict[str, torch.Tensor]):
    """`input_ids` and `labels`, int64 [batch_size, seq_len], as a model takes them: `model(**batch)`.

    `labels` are the same ids, -100 on padding (and, with `mask_edges`, on a document's first token); models shift them by
    themselves. What `fields` asks for stands beside them: `position_ids` and `segment_ids`, int64 [batch_size, seq_len];
    `cu_seqlens`, int32 [segments + 1], and `max_seqlen`, int32 [].

    `first_row` is the row of the run that the rank's first row is, `row_step` the distance to the next; `spans` says what the
    rows are made of: int64 [spans, 6] with the columns of `cloudload.pack.SPAN_FIELDS` (row of the batch, stream, epoch, sample,
    start, stop).
    """

    def __init__(self, tensors: dict[str, torch.Tensor], spans: Ints, first_row: int, row_step: int) -> None:
        super().__init__(tensors)
        self.spans, self.first_row, self.row_step = spans, first_row, row_step


@dataclass(frozen=True)
class Progress:
    """What a batch's rows did to the lanes: cursors int64 [rows, 2] and residues after each row, and counts of all together."""

    cursors: Ints
    residues: list[bytes]
    counts: Ints
    first_dry: int


def join_progress(blocks: Sequence[Block], workers: Ints) -> Progress:
    """The progress of the workers' blocks; `workers` names each row's worker, whose rows stand in its block in their order."""
    cursors = np.empty((len(workers), 2), np.int64)
    residues = [b""] * len(workers)
    for worker, block in enumerate(blocks):
        places = np.flatnonzero(workers == worker)
        cursors[places] = block.cursors
        for place, residue in zip(places.tolist(), block.residues, strict=True):
            residues[place] = residue
    counts: Ints = np.sum([block.counts for block in blocks], axis=0)
    return Progress(cursors, residues, counts, min(block.first_dry for block in blocks))


def join_blocks(blocks: Sequence[Block], workers: Ints, rows: range, delivery: DeliveryConfig) -> Batch:
    """The batch of the workers' blocks; `rows` are the rows of the run that it holds."""
    shape = len(rows), blocks[0].tokens.shape[1]
    pin_memory = delivery.pin_memory and torch.cuda.is_available()
    # filled through numpy: torch would wake a thread for every core
    input_ids, labels = (torch.empty(shape, dtype=torch.int64, pin_memory=pin_memory) for _ in range(2))
    lengths = np.empty(len(rows), np.int64)
    spans = []
    for worker, block in enumerate(blocks):
        places = np.flatnonzero(workers == worker)
        input_ids.numpy()[places] = block.tokens
        lengths[places] = block.lengths
        block_spans = block.spans.copy()
        block_spans[:, 0] = places[block_spans[:, 0]]
        spans.append(block_spans)
    labels.numpy()[:] = input_ids.numpy()
    if (lengths < shape[1]).any():
        labels.numpy()[np.arange(shape[1]) >= lengths[:, None]] = IGNORED_LABEL
    joined = np.concatenate(spans)
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    span_rows, span_lengths = joined[:, 0], joined[:, 5] - joined[:, 4]
    if delivery.mask_edges:
        mask_document_edges(labels.numpy(), span_rows, span_lengths)
    tensors = {"input_ids": input_ids, "labels": labels, **_fields(delivery.fields, span_rows, span_lengths, shape)}
    if pin_memory:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return Batch(tensors, joined, rows.start, rows.step)


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
