"""Join the blocks of a rank's workers into the batch that the training loop receives.

worker 0's rows   0 2     ┐
worker 1's rows   1 3     ┴─► input_ids, labels [rows, seq_len] ─► fields, computed from spans
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cloudload.config import DeliveryConfig
from cloudload.loading.batch import Batch, SpanParts
from cloudload.loading.workers.block import Block
from cloudload.rows import tables
from cloudload.segments import (
    FIELDS,
    IGNORED_LABEL,
    INTEGERS,
    Array,
    SpanColumns,
    mask_document_edges,
)
from cloudload.system import Ints


def join_blocks(
    blocks: Sequence[Block],
    index: int,
    batch_rows: Sequence[slice | Ints],
    rows: range | Ints,
    delivery: DeliveryConfig,
) -> Batch:
    """Join the workers' parts of the batch with index `index` in each block.

    `rows` has the indices of the batch's rows in the run. For each worker, `batch_rows` has the
    indices of the worker's rows within the batch: int64 [rows], or a slice.
    """
    shape = len(rows), blocks[0].tokens.shape[1]
    pin_memory = delivery.pin_memory and torch.cuda.is_available()
    # fill tensors through NumPy, because torch may wake a thread for every core
    (input_ids, ids), (labels, targets) = _new(shape, pin_memory), _new(shape, pin_memory)
    parts: SpanParts = []
    is_full = True
    for block, own in zip(blocks, batch_rows, strict=True):
        of_batch = block.rows_of(index)
        ids[own] = block.tokens[of_batch]
        parts.append((block.spans[block.spans_of(index)], of_batch.start, own))
        is_full = is_full and block.is_full
    targets[:] = ids
    if not is_full:
        _mask_padding(targets, blocks, index, batch_rows)
    batch = Batch({"input_ids": input_ids, "labels": labels}, parts, rows)
    if delivery.mask_edges or delivery.fields:
        _add_fields(batch, targets, delivery, pin_memory)
    return batch


def _new(shape: tuple[int, int], pin_memory: bool) -> tuple[torch.Tensor, Ints]:
    """Allocate an int64 tensor. Returns the tensor, and an array that shares its memory."""
    if pin_memory:
        tensor = torch.empty(shape, dtype=torch.int64, pin_memory=True)
        return tensor, tensor.numpy()
    array = np.empty(shape, np.int64)  # NumPy allocates faster
    return torch.from_numpy(array), array


def _mask_padding(
    labels: Ints, blocks: Sequence[Block], index: int, batch_rows: Sequence[slice | Ints]
) -> None:
    lengths = np.empty(len(labels), np.int64)
    for block, own in zip(blocks, batch_rows, strict=True):
        lengths[own] = block.lengths[block.rows_of(index)]
    mask_after(labels, lengths)


def mask_after(labels: Ints, lengths: Ints) -> None:
    """Set the labels after the last token of each row to -100, in place.

    `labels` is int64 [rows, seq_len]. `lengths`, int64 [rows], has the number of tokens per row.
    """
    for row in np.flatnonzero(lengths < labels.shape[1]).tolist():
        labels[row, lengths[row] :] = IGNORED_LABEL


def _add_fields(batch: Batch, labels: Ints, delivery: DeliveryConfig, pin_memory: bool) -> None:
    for name, array in compute_fields(labels, batch.spans, delivery).items():
        if name in INTEGERS:
            batch[name] = int(array)
        else:
            tensor = torch.from_numpy(array)
            batch[name] = tensor.pin_memory() if pin_memory else tensor


def compute_fields(labels: Ints, spans: Ints, delivery: DeliveryConfig) -> dict[str, Array]:
    """Compute the arrays that the option `fields` requests, by name.

    With the option `mask_edges`, also masks the labels at the edges of documents, in place.
    `spans` (int64 [spans, 6]) are the spans of the rows of `labels` (int64 [rows, seq_len]).
    """
    rows, lengths = (
        spans[:, tables.SPAN_ROW],
        spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START],
    )
    if delivery.mask_edges:
        mask_document_edges(labels, rows, lengths)
    columns = SpanColumns(rows, lengths, spans[:, tables.SPAN_STREAM], spans[:, tables.SPAN_SAMPLE])
    arrays: dict[str, Array] = {}
    for field in delivery.fields:
        arrays |= FIELDS[field](columns, (labels.shape[0], labels.shape[1]))
    return arrays
