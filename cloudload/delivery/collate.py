"""Join the blocks of a rank's workers into the batch that the training loop receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cloudload.arrays import Ints
from cloudload.batch import Batch, SpanParts
from cloudload.config import DeliveryConfig
from cloudload.packing.tables import SPAN_ROW, SPAN_START, SPAN_STOP
from cloudload.segments import (
    IGNORED_LABEL,
    cu_seqlens,
    mask_document_edges,
    position_ids,
    segment_ids,
)
from cloudload.workers.block import Block


def join_blocks(
    blocks: Sequence[Block],
    number: int,
    places: Sequence[slice | Ints],
    rows: range,
    delivery: DeliveryConfig,
) -> Batch:
    """Batch `number` of the workers' blocks: these `rows` of the run, of which each worker has
    those at its `places`."""
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
        span_rows, span_lengths = (
            batch.spans[:, SPAN_ROW],
            batch.spans[:, SPAN_STOP] - batch.spans[:, SPAN_START],
        )
        if delivery.mask_edges:
            mask_document_edges(targets, span_rows, span_lengths)
        fields = _fields(delivery.fields, span_rows, span_lengths, shape)
        batch.update(
            {name: tensor.pin_memory() if pin_memory else tensor for name, tensor in fields.items()}
        )
    return batch


def _new_tensor(shape: tuple[int, int], pin_memory: bool) -> torch.Tensor:
    # numpy is several times as quick to make an array
    return (
        torch.empty(shape, dtype=torch.int64, pin_memory=True)
        if pin_memory
        else torch.from_numpy(np.empty(shape, np.int64))
    )


def _mask_padding(
    labels: np.ndarray[Any, np.dtype[np.int64]],
    blocks: Sequence[Block],
    number: int,
    places: Sequence[slice | Ints],
) -> None:
    lengths = np.empty(len(labels), np.int64)
    for block, own in zip(blocks, places, strict=True):
        lengths[own] = block.lengths[block.rows_of(number)]
    for row, length in enumerate(lengths.tolist()):
        labels[row, length:] = IGNORED_LABEL


def _fields(
    fields: Sequence[str], rows: Ints, lengths: Ints, shape: tuple[int, int]
) -> dict[str, torch.Tensor]:
    tensors = {}
    if "position_ids" in fields:
        tensors["position_ids"] = torch.from_numpy(position_ids(rows, lengths, shape))
    if "segment_ids" in fields:
        tensors["segment_ids"] = torch.from_numpy(segment_ids(rows, lengths, shape))
    if "cu_seqlens" in fields:
        ends, longest = cu_seqlens(rows, lengths, shape)
        tensors["cu_seqlens"], tensors["max_seqlen"] = (
            torch.from_numpy(ends),
            torch.tensor(longest, dtype=torch.int32),
        )
    return tensors
