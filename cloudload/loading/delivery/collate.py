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
from cloudload.rows import hide_untrained, tables
from cloudload.run import Recipe
from cloudload.segments import (
    FIELDS,
    IGNORED_LABEL,
    INTEGERS,
    NO_DOCUMENT,
    OF_DOCUMENTS,
    Array,
    SpanColumns,
    add_lead,
    mask_document_edges,
)
from cloudload.system import Flags, Ints


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
        num_rows = int((np.asarray(rows) < plan.ending.end).sum())
    return [
        _join(
            [
                _take_part(block, block.rows_of(index), own, start, stop)
                for block, own in zip(blocks, rank_rows, strict=True)
            ],
            rows[start:stop],
            shape.batch_rows,
            plan,
        )
        for start, stop in pairwise(shape.divide(num_rows))
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
    parts: Sequence[_WorkerRows], rows: range | Ints, num_rows: int, plan: WorkerPlan
) -> Batch:
    """Join parts of a batch, whose indices in the run are `rows`, and fill it up to `num_rows`."""
    delivery, num_lead = plan.delivery, plan.recipe.config.num_lead
    shape = num_rows, num_lead + parts[0].block.tokens.shape[1]
    pin_memory = delivery.pin_memory and torch.cuda.is_available()
    # fill tensors through NumPy, because torch may wake a thread for every core
    (input_ids, ids), (labels, targets) = _new(shape, pin_memory), _new(shape, pin_memory)
    spans: SpanParts = []
    for part in parts:
        ids[part.batch_rows, num_lead:] = part.block.tokens[part.block_rows]
        own = part.block.spans_between(part.block_rows)
        spans.append((own, part.block_rows.start, part.batch_rows))
    is_full = len(rows) == num_rows and all(part.block.is_full for part in parts)
    ids[len(rows) :] = delivery.pad_id
    lengths = None if is_full else _count_tokens(num_rows, parts)
    is_pad = label_rows(plan.recipe, ids, targets, lengths, delivery.pad_id)
    if len(rows) < num_rows:
        rows = np.pad(np.asarray(rows, np.int64), (0, num_rows - len(rows)), constant_values=-1)
    batch = Batch({"input_ids": input_ids, "labels": labels}, spans, rows, num_lead)
    if plan.recipe.config.pad_documents_to > 1:
        batch.is_pad = is_pad
    if delivery.mask_edges or delivery.fields:
        _add_fields(batch, targets, delivery, pin_memory)
    return batch


def count_trained(batch: Batch, num_streams: int) -> list[int]:
    """Count the tokens of each stream in a batch whose labels are not -100."""
    spans, is_trained = batch.spans, batch["labels"].numpy() != IGNORED_LABEL
    trained_before = np.append(0, np.cumsum(is_trained))
    sizes = spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START]
    rows, within = spans[:, tables.SPAN_ROW], np.cumsum(sizes) - sizes
    # the spans of a row begin at its token `num_lead`, one after the other
    firsts = within[np.searchsorted(rows, rows)]
    starts = rows * is_trained.shape[1] + batch.num_lead + within - firsts
    numbers = trained_before[starts + sizes] - trained_before[starts]
    counts = np.bincount(spans[:, tables.SPAN_STREAM], numbers, num_streams)
    return [int(number) for number in counts.tolist()]


def _new(shape: tuple[int, int], pin_memory: bool) -> tuple[torch.Tensor, Ints]:
    """Allocate an int64 tensor. Returns the tensor, and an array that shares its memory."""
    if pin_memory:
        tensor = torch.empty(shape, dtype=torch.int64, pin_memory=True)
        return tensor, tensor.numpy()
    array = np.empty(shape, np.int64)  # NumPy allocates faster
    return torch.from_numpy(array), array


def _count_tokens(num_rows: int, parts: Sequence[_WorkerRows]) -> Ints:
    """The number of tokens of documents in each row: int64 [rows]."""
    lengths = np.zeros(num_rows, np.int64)  # filler rows have no tokens
    for part in parts:
        lengths[part.batch_rows] = part.block.lengths[part.block_rows]
    return lengths


def label_rows(
    recipe: Recipe, ids: Ints, labels: Ints, lengths: Ints | None, pad_id: int
) -> Flags | None:
    """Begin rows with their `row_bos`, if there is one, and set their labels, in place.

    `ids` and `labels` are int64 [rows, seq_len]. `lengths`, int64 [rows], has the number of tokens
    of documents per row; None if all rows are full. Tokens of `ids` that are not trained, or
    padding within documents, become plain IDs. The first token of a row without documents is
    padding. Returns where documents are padded: bool [rows, seq_len]; None if no token is masked.
    """
    row_bos, num_lead = recipe.tokenizer.row_bos, recipe.config.num_lead
    if row_bos is not None:
        ids[:, 0] = row_bos if lengths is None else np.where(lengths > 0, row_bos, pad_id)
    labels[:] = ids
    is_pad = hide_untrained(ids, labels, pad_id) if recipe.has_masks else None
    labels[:, :num_lead] = IGNORED_LABEL
    if lengths is not None:
        ends = lengths + num_lead
        for row in np.flatnonzero(ends < labels.shape[1]).tolist():
            labels[row, ends[row] :] = IGNORED_LABEL
    return is_pad


def _add_fields(batch: Batch, labels: Ints, delivery: DeliveryConfig, pin_memory: bool) -> None:
    for name, array in compute_fields(labels, batch.spans, delivery, batch.num_lead).items():
        if name in INTEGERS:
            batch[name] = int(array)
        else:
            tensor = torch.from_numpy(array)
            batch[name] = tensor.pin_memory() if pin_memory else tensor


def compute_fields(
    labels: Ints, spans: Ints, delivery: DeliveryConfig, num_lead: int
) -> dict[str, Array]:
    """Compute the arrays that the option `fields` requests, by name.

    With the option `mask_edges`, also masks the labels at the edges of documents, in place.
    `spans` (int64 [spans, 6]) are the spans of the rows of `labels` (int64 [rows, seq_len]). The
    first `num_lead` tokens of a row are in the segment of its first span, but in no document.
    """
    rows, lengths = (
        spans[:, tables.SPAN_ROW],
        spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START],
    )
    lengths = add_lead(rows, lengths, num_lead)
    if delivery.mask_edges:
        mask_document_edges(labels, rows, lengths)
    columns = SpanColumns(rows, lengths, spans[:, tables.SPAN_STREAM], spans[:, tables.SPAN_SAMPLE])
    arrays: dict[str, Array] = {}
    for field in delivery.fields:
        arrays |= FIELDS[field](columns, (labels.shape[0], labels.shape[1]))
    for name in OF_DOCUMENTS & arrays.keys():
        arrays[name][:, :num_lead] = NO_DOCUMENT
    return arrays
