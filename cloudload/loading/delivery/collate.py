"""Join the blocks of a rank's workers into the batches that the training loop receives.

worker 0's rows   0 2 4   ┐                              ┌─ 0 1 2  ─► input_ids, labels, and fields,
worker 1's rows   1 3     ┴─► rows of the rank, divided ─┴─ 3 4 -      which are computed from spans

A step is one batch, or several micro-batches. Filler rows (`-`) are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from cloudload.config import DeliveryConfig
from cloudload.loading.batch import Batch, SpanParts
from cloudload.loading.workers.block import Block
from cloudload.loading.workers.worker_plan import WorkerPlan
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


class _WorkerRows(NamedTuple):
    """One worker's rows of a batch."""

    block: Block
    block_rows: slice
    batch_rows: slice | Ints
    """The rows' indices within the batch."""


def join_blocks(
    blocks: Sequence[Block],
    index: int,
    rank_rows: Sequence[slice | Ints],
    rows: range | Ints,
    plan: WorkerPlan,
) -> list[Batch]:
    """Join the workers' parts of the step with index `index` in each block, as the step's batches.

    `rows` has the indices in the run of the rank's rows. For each worker, `rank_rows` has the
    indices of the worker's rows within these: int64 [rows], or a slice of all. The rows are divided
    evenly into micro-batches, and filler rows make all batches equally large.
    """
    shape, num_rows = plan.share.shape, len(rows)
    if shape.num_batches > 1 and plan.ending is not None:
        # the rows after the end of the run are padding, as filler rows are
        num_rows = int(np.searchsorted(np.asarray(rows), plan.ending.end))
    bounds = [num_rows * batch // shape.num_batches for batch in range(shape.num_batches + 1)]
    return [
        _join(
            [
                _take_part(block, block.rows_of(index), own, start, stop)
                for block, own in zip(blocks, rank_rows, strict=True)
            ],
            rows[start:stop],
            shape.batch_rows,
            plan.delivery,
        )
        for start, stop in pairwise(bounds)
    ]


def _take_part(
    block: Block, block_rows: slice, rank_rows: slice | Ints, start: int, stop: int
) -> _WorkerRows:
    """Take a worker's part of the rank's rows [start, stop)."""
    first: int = block_rows.start
    if isinstance(rank_rows, slice):
        return _WorkerRows(block, slice(first + start, first + stop), slice(0, stop - start))
    own_start, own_stop = np.searchsorted(rank_rows, (start, stop)).tolist()
    own = rank_rows[own_start:own_stop] - start
    return _WorkerRows(block, slice(first + own_start, first + own_stop), own)


def _join(
    parts: Sequence[_WorkerRows], rows: range | Ints, num_rows: int, delivery: DeliveryConfig
) -> Batch:
    """Join parts of a batch, whose indices in the run are `rows`, and fill it up to `num_rows`."""
    shape = num_rows, parts[0].block.tokens.shape[1]
    pin_memory = delivery.pin_memory and torch.cuda.is_available()
    # fill tensors through NumPy, because torch may wake a thread for every core
    (input_ids, ids), (labels, targets) = _new(shape, pin_memory), _new(shape, pin_memory)
    spans: SpanParts = []
    for part in parts:
        ids[part.batch_rows] = part.block.tokens[part.block_rows]
        own = part.block.spans_between(part.block_rows)
        spans.append((own, part.block_rows.start, part.batch_rows))
    is_full = len(rows) == num_rows and all(part.block.is_full for part in parts)
    ids[len(rows) :] = delivery.pad_id
    targets[:] = ids
    if not is_full:
        _mask_padding(targets, parts)
    if len(rows) < num_rows:
        rows = np.pad(np.asarray(rows, np.int64), (0, num_rows - len(rows)), constant_values=-1)
    batch = Batch({"input_ids": input_ids, "labels": labels}, spans, rows)
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


def _mask_padding(labels: Ints, parts: Sequence[_WorkerRows]) -> None:
    lengths = np.zeros(len(labels), np.int64)  # filler rows have no tokens
    for part in parts:
        lengths[part.batch_rows] = part.block.lengths[part.block_rows]
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
