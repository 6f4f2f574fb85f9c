"""What the training loop receives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cloudload.lanes import Ints
from cloudload.worker import Block

IGNORED_LABEL = -100


class Batch(dict[str, torch.Tensor]):
    """`input_ids` and `labels`, int64 [batch_size, seq_len], as a model takes them: `model(**batch)`.

    `labels` are the same ids, -100 on padding; models shift them by themselves. `first_row` is the row of the run that the
    rank's first row is, `row_step` the distance to the next; `spans` says what the rows are made of: int64 [spans, 6] with the
    columns of `cloudload.pack.SPAN_FIELDS` (row of the batch, stream, epoch, sample, start, stop).
    """

    def __init__(self, input_ids: torch.Tensor, labels: torch.Tensor, spans: Ints, first_row: int, row_step: int) -> None:
        super().__init__(input_ids=input_ids, labels=labels)
        self.spans, self.first_row, self.row_step = spans, first_row, row_step


def join_blocks(blocks: Sequence[Block], workers: Ints, rows: range, *, pin_memory: bool = False) -> tuple[Batch, Ints]:
    """The batch of the workers' blocks, and the cursors after its rows (int64 [batch_size, 2]).

    `workers` names each row's worker; a worker's rows stand in its block in the rows' order.
    """
    seq_len = blocks[0].tokens.shape[1]
    pin_memory = pin_memory and torch.cuda.is_available()
    # filled through numpy: torch would wake a thread for every core
    input_ids, labels = (torch.empty((len(rows), seq_len), dtype=torch.int64, pin_memory=pin_memory) for _ in range(2))
    lengths = np.empty(len(rows), np.int64)
    cursors = np.empty((len(rows), 2), np.int64)
    spans = []
    for worker, block in enumerate(blocks):
        places = np.flatnonzero(workers == worker)
        input_ids.numpy()[places] = block.tokens
        lengths[places], cursors[places] = block.lengths, block.cursors
        block_spans = block.spans.copy()
        block_spans[:, 0] = places[block_spans[:, 0]]
        spans.append(block_spans)
    labels.numpy()[:] = input_ids.numpy()
    if (lengths < seq_len).any():
        labels.numpy()[np.arange(seq_len) >= lengths[:, None]] = IGNORED_LABEL
    joined = np.concatenate(spans)
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    return Batch(input_ids, labels, joined, rows.start, rows.step), cursors
