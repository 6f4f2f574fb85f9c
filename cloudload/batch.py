"""What the training loop receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cloudload.arrays import Ints
from cloudload.packing.tables import SPAN_ROW, SPAN_START, SPAN_STOP

UNKNOWN = -1

SpanParts = list[tuple[Ints, int, slice | Ints]]
"""Spans of some rows of a block, the first of these rows, and the rows' places in the batch."""


class Batch(dict[str, torch.Tensor]):
    """The tensors of a batch, as a model takes them: `model(**batch)`.

    `input_ids` and `labels` are int64 [batch_size, seq_len]. `labels` are the same ids, with -100
    on padding (and, with `mask_edges`, on a document's first token); models shift them themselves.
    `fields` adds `position_ids` and `segment_ids`, int64 [batch_size, seq_len]; `cu_seqlens`, int32
    [segments + 1]; and `max_seqlen`, int32 [].

    `rows` and `spans` say which rows of the run these are and what they are made of. A copy that a
    framework makes of the tensors alone does not know them.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        spans: Ints | SpanParts | None = None,
        first_row: int = UNKNOWN,
        row_step: int = UNKNOWN,
    ) -> None:
        super().__init__(tensors)
        self._spans = spans
        self.first_row, self.row_step = first_row, row_step
        """The row of the run that the rank's first row is, and the distance to its next one."""

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on another device."""
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.items()
        }
        return Batch(moved, self._spans, self.first_row, self.row_step)

    @property
    def rows(self) -> Ints:
        """The row of the run that each row of the batch is: int64 [batch_size], ascending.

        Raises `ValueError` for a copy of the tensors.
        """
        if self._spans is None:
            raise _copied("rows")
        return self.first_row + np.arange(len(self["input_ids"])) * self.row_step

    @property
    def spans(self) -> Ints:
        """The documents that the rows are made of: int64 [spans, 6], row by row.

        The columns are row of the batch, stream, epoch, sample of the stream, and start and stop,
        in tokens of the document. Raises `ValueError` for a copy of the tensors.
        """
        if self._spans is None:
            raise _copied("spans")
        if isinstance(self._spans, list):
            # joined when first asked for
            self._spans = _join_spans(self._spans)
        return self._spans

    @property
    def num_tokens(self) -> int:
        """Tokens of documents in its rows, without padding."""
        return _sum_lengths(self.spans)

    def count_tokens_before(self, row: int) -> int:
        """Tokens of documents in its rows before `row` of the run."""
        return _sum_lengths(self.spans[self.rows[self.spans[:, SPAN_ROW]] < row])


def _copied(what: str) -> ValueError:
    return ValueError(
        f"this is a copy of a batch's tensors, which knows no {what}. "
        "Ask the batch that the loader "
        "handed out"
    )


def _sum_lengths(spans: Ints) -> int:
    return int((spans[:, SPAN_STOP] - spans[:, SPAN_START]).sum())


def _join_spans(parts: SpanParts) -> Ints:
    joined = []
    for spans, first_row, places in parts:
        own = spans.copy()
        own[:, SPAN_ROW] -= first_row
        if not isinstance(places, slice):
            own[:, SPAN_ROW] = places[own[:, SPAN_ROW]]
        joined.append(own)
    if len(joined) == 1:
        return joined[0]
    together = np.concatenate(joined)
    return together[np.argsort(together[:, SPAN_ROW], kind="stable")]
