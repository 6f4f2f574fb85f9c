"""The batch that the training loop receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cloudload.rows import tables
from cloudload.segments import (
    IGNORED_LABEL,
    OF_BATCH,
    Array,
    add_lead,
    position_ids,
    row_bounds,
)
from cloudload.system import Flags, Ints

UNKNOWN = -1

SpanParts = list[tuple[Ints, int, slice | Ints]]
"""The spans of a batch, one tuple per worker: the spans of the worker's rows (int64 [spans, 6],
whose rows are indices in its block), the first of these rows, and the rows' indices in the
batch."""


class Batch(dict[str, Any]):
    """The tensors of a batch, under the names of a model's arguments: `model(**batch)`.

    `input_ids` and `labels` are int64 [batch_size, seq_len]. `labels` are the same IDs, with -100
    on padding (and, with `mask_edges`, on the first token of each span). They are not shifted,
    because Hugging Face models shift them. `fields` can add `position_ids`, `segment_ids`,
    `stream_ids` and `document_ids`, int64 [batch_size, seq_len]; `seq_idx`, int32 [batch_size,
    seq_len]; `cu_seqlens`, `cu_seq_lens_q` and `cu_seq_lens_k`, int32 [segments + 1]; `max_seqlen`,
    int32 []; and `max_length_q` and `max_length_k`, which are integers.

    `rows` returns the indices of the batch's rows in the run, and `spans` returns the documents in
    these rows. If a framework copies only the tensors into a new `Batch`, both raise `ValueError`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        spans: Ints | SpanParts | None = None,
        rows: range | Ints = range(0),
        num_lead: int = 0,
    ) -> None:
        super().__init__(tensors)
        self._spans, self._rows, self._num_lead = spans, rows, num_lead
        self.is_pad: Flags | None = None
        """Where `pad_documents_to` padded documents: bool [batch_size, seq_len]; None without
        it."""

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Return a batch with the tensors moved to `device`, as `torch.Tensor.to` does."""
        moved = {
            name: value.to(device, non_blocking=non_blocking)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in self.items()
        }
        return self._with(moved)

    def _with(self, tensors: Mapping[str, Any]) -> Batch:
        """Return a batch of the same rows with other tensors."""
        batch = Batch(tensors, self._spans, self._rows, self._num_lead)
        batch.is_pad = self.is_pad
        return batch

    def numpy(self) -> dict[str, Any]:
        """Return the tensors as NumPy arrays, without copying, for JAX and other frameworks."""
        return {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in self.items()
        }

    def flatten(self) -> Batch:
        """Return the batch as one row, as transformers' `DataCollatorWithFlattening` does.

        All tensors of [batch_size, seq_len] become [1, batch_size * seq_len]. The label of each
        row's first token becomes -100, because no token of its row precedes it, and `segment_ids`
        count on over the rows. `rows` and `spans` stay those of the batch.
        """
        seq_len = self["input_ids"].shape[1]
        flat = {
            name: value.reshape(1, -1) if name not in OF_BATCH else value
            for name, value in self.items()
        }
        flat["labels"] = flat["labels"].clone()
        flat["labels"][:, ::seq_len] = IGNORED_LABEL
        if "segment_ids" in flat:
            ids = self["segment_ids"]
            before = torch.zeros_like(ids[:, :1])
            before[1:, 0] = ids.amax(1).cumsum(0)[:-1]
            flat["segment_ids"] = torch.where(ids > 0, ids + before, ids).reshape(1, -1)
        return self._with(flat)

    def megatron(self) -> dict[str, torch.Tensor]:
        """Return the tensors under the names that `get_batch` of Megatron-LM reads.

        `tokens`, `labels`, `position_ids`, int64, and `loss_mask`, float32, are [batch_size,
        seq_len]. A label is the next token of the row; where the loss mask is 0, it is 0.
        `cu_seqlens_padded`, int32 [batch_size, seq_len + 1], has the bounds of each row's
        documents, filled with seq_len after the last one. `cu_seqlens` is the same, unless
        `pad_documents_to` pads documents: it then adds up their tokens without this padding.
        `max_seqlen`, int32 [batch_size], is the length of each row's longest document, with its
        padding. All are on the CPU.

        Raises `ValueError` for a copy of the tensors.
        """
        tokens, labels = self["input_ids"].cpu(), self["labels"].cpu()
        # Megatron-LM's models do not shift labels
        shifted = torch.full_like(labels, IGNORED_LABEL)
        shifted[:, :-1] = labels[:, 1:]
        spans, shape = self.spans, (tokens.shape[0], tokens.shape[1])
        rows = spans[:, tables.SPAN_ROW]
        lengths = spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START]
        lengths = add_lead(rows, lengths, self._num_lead)
        bounds = torch.from_numpy(row_bounds(rows, lengths, shape))
        own = bounds
        if self.is_pad is not None:
            own = torch.from_numpy(_shrink_bounds(bounds.numpy(), self.is_pad))
        return {
            "tokens": tokens,
            "labels": shifted.clamp(min=0),
            "loss_mask": (shifted != IGNORED_LABEL).float(),
            "position_ids": torch.from_numpy(position_ids(rows, lengths, shape)),
            "cu_seqlens": own,
            "cu_seqlens_padded": bounds,
            "max_seqlen": bounds.diff(dim=1).amax(1),
        }

    @property
    def rows(self) -> Ints:
        """The indices of the batch's rows in the run: int64 [batch_size], ascending.

        Filler rows, which follow the others, have -1. Raises `ValueError` for a copy of the
        tensors.
        """
        if self._spans is None:
            raise _copied("rows")
        return np.asarray(self._rows, np.int64)

    @property
    def first_row(self) -> int:
        """The index of the batch's first row in the run; -1 in a copy of the tensors."""
        return int(self._rows[0]) if len(self._rows) else UNKNOWN

    @property
    def row_step(self) -> int:
        """The difference between the run indices of consecutive rows of the batch.

        It is -1 in a copy of the tensors. It is also -1 if the differences vary, because the world
        size does not divide the number of lanes, or because of the option `balance`.
        """
        return self._rows.step if isinstance(self._rows, range) and self._rows else UNKNOWN

    @property
    def spans(self) -> Ints:
        """The documents in the rows: int64 [spans, 6], by ascending row.

        The columns are the row within the batch, the stream, the epoch, the sample within the
        stream, start, and stop. A span is tokens [start, stop) of the document, bos and eos
        included. A row's spans are contiguous, and begin at its token `num_lead`. Raises
        `ValueError` for a copy of the tensors.
        """
        if self._spans is None:
            raise _copied("spans")
        if isinstance(self._spans, list):
            # joined on first use, because most training loops never read spans
            self._spans = _join_spans(self._spans)
        return self._spans

    @property
    def num_lead(self) -> int:
        """The number of tokens before the first span of each row: 1 with `row_bos`, else 0."""
        return self._num_lead

    @property
    def num_tokens(self) -> int:
        """The number of tokens of documents in the batch.

        Raises `ValueError` for a copy of the tensors.
        """
        return _sum_lengths(self.spans)

    @property
    def num_trained_tokens(self) -> int:
        """The number of tokens that a model predicts: labels that are not -100, without those of
        the rows' first tokens."""
        return int((self["labels"][:, 1:] != IGNORED_LABEL).sum())

    def count_tokens_before(self, row: int) -> int:
        """Count the tokens, without padding, in the batch's rows that precede row `row` of the run.

        Raises `ValueError` for a copy of the tensors.
        """
        return _sum_lengths(self.spans[self.rows[self.spans[:, tables.SPAN_ROW]] < row])


def _shrink_bounds(bounds: Array, is_pad: Flags) -> Array:
    """Return bounds of documents, int32 [rows, seq_len + 1], without the padding before each."""
    num_before = np.zeros_like(bounds)
    np.cumsum(is_pad, axis=1, out=num_before[:, 1:])
    shrunk: Array = bounds - np.take_along_axis(num_before, bounds, axis=1)
    return shrunk


def _copied(what: str) -> ValueError:
    return ValueError(
        f"this batch is a copy of a batch's tensors, so it has no {what}. Use the batch that the "
        "loader returned"
    )


def _sum_lengths(spans: Ints) -> int:
    return int((spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START]).sum())


def _join_spans(parts: SpanParts) -> Ints:
    joined = []
    for spans, first_row, batch_rows in parts:
        own = spans.copy()
        own[:, tables.SPAN_ROW] -= first_row
        if not isinstance(batch_rows, slice):
            own[:, tables.SPAN_ROW] = batch_rows[own[:, tables.SPAN_ROW]]
        joined.append(own)
    if len(joined) == 1:
        return joined[0]
    together = np.concatenate(joined)
    return together[np.argsort(together[:, tables.SPAN_ROW], kind="stable")]
