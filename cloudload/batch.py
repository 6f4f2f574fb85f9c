"""What the training loop receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cloudload.arrays import Ints
from cloudload.packing.tables import SPAN_ROW, SPAN_START, SPAN_STOP

UNKNOWN = -1


class Batch(dict[str, torch.Tensor]):
    """`input_ids` and `labels`, int64 [batch_size, seq_len], as a model takes them:
    `model(**batch)`.

    `labels` are the same ids, -100 on padding (and, with `mask_edges`, on a document's first
    token); models shift them by themselves. What `fields` asks for stands beside them:
    `position_ids` and `segment_ids`, int64 [batch_size, seq_len]; `cu_seqlens`, int32 [segments +
    1], and `max_seqlen`, int32 [].

    `first_row` is the row of the run that the rank's first row is, `row_step` the distance to the
    next; `spans` says what the rows are made of: int64 [spans, 6] with the columns of `SPAN_COLUMNS`
    (row of the batch, stream, epoch, sample, start, stop). A copy that a framework makes of the
    tensors alone knows none of these.
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
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.items()
        }
        return Batch(moved, self._spans, self.first_row, self.row_step)

    @property
    def spans(self) -> Ints:
        """What the rows are made of; joined when it is first asked for."""
        if self._spans is None:
            raise ValueError(
                "this is a copy of a batch's tensors, which knows no spans; ask the batch that the "
                "loader handed out"
            )
        if isinstance(self._spans, list):
            self._spans = _join_spans(self._spans)
        return self._spans

    @property
    def num_tokens(self) -> int:
        """Tokens of documents in its rows, without padding."""
        return int((self.spans[:, SPAN_STOP] - self.spans[:, SPAN_START]).sum())


SpanParts = list[tuple[Ints, int, slice | Ints]]
"""Spans of some rows of a block, the first of these rows, and where they stand in the batch."""


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
