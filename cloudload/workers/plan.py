"""What the workers of a rank are asked for, and what they give back: a plan, and blocks.

Plan     the recipe of the rows, the rank's place in the world, and where the lanes stand          picklable, made once
Block    a worker's rows of some batches, with their spans and the cursors after them              arrays, never pickled
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudload.arrays import NEVER, Ints
from cloudload.config import FASTOKENS, HF, DeliveryConfig
from cloudload.order.lanes import rank_rows, worker_of_rows
from cloudload.packing.tail import Tail
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.tokenization.backend import Choice

# enough in one call that the tokenizer's work hides ours, and not so much that anybody waits for it
_ROWS_AT_ONCE = {HF: 128, FASTOKENS: 1024}
_TOKENS_OF_ROW = 2_048
_REPLAYED_ROWS_AT_ONCE = 2_048


@dataclass(frozen=True)
class Plan:
    """All that the workers of one rank need; picklable."""

    recipe: Recipe
    delivery: DeliveryConfig
    backend: Choice
    """By what documents are encoded."""
    cache_root: Path
    world_index: int
    world_size: int
    num_workers: int
    position: Position
    """From where they go on."""
    is_measured: bool = False
    """Whether the sizes of all documents that the lanes have left are asked for, in place of
    rows."""
    tail_start: int = NEVER
    """The row at which the lanes ended."""
    tail: Tail | None = None
    """Where the rows from there on come from."""

    @property
    def num_lanes(self) -> int:
        """The lanes of the run."""
        return self.recipe.num_lanes

    @property
    def batches_at_once(self) -> int:
        """The batches whose blocks every worker makes at once."""
        rows_of_worker = -(-self.delivery.batch_size // self.num_workers)
        most = _ROWS_AT_ONCE[self.backend.name]
        return max(
            1, min(most, most * _TOKENS_OF_ROW // self.recipe.config.seq_len) // rows_of_worker
        )

    @property
    def window_start(self) -> int:
        """The row from which on rows have yet to be exchanged."""
        return (
            self.position.table_rows if self.position.rows < self.tail_start else self.position.rows
        )

    def replays(self) -> Iterator[tuple[int, int]]:
        """The stretches [start, stop) of rows that are read again, each for one block of each
        worker."""
        step = _REPLAYED_ROWS_AT_ONCE * self.world_size
        for start in range(self.window_start, self.position.rows, step):
            yield start, min(start + step, self.position.rows)

    def own_lanes(self, worker: int) -> range:
        """The lanes of one worker."""
        return range(self.world_index, self.num_lanes, self.world_size)[worker :: self.num_workers]

    def rank_rows(self, start: int, stop: int) -> range:
        """The rows of this rank among [start, stop)."""
        return rank_rows(start, stop, self.world_index, self.world_size)

    def worker_places(self, rows: range) -> list[slice | Ints]:
        """Where the rows of each worker stand among the rank's `rows`."""
        if self.num_workers == 1:
            return [slice(None)]
        workers = worker_of_rows(rows, self.num_lanes, self.world_size, self.num_workers)
        return [np.flatnonzero(workers == worker) for worker in range(self.num_workers)]

    def worker_rows(self, worker: int, start: int, stop: int) -> Ints:
        """The rows of one worker of this rank among [start, stop)."""
        rows = self.rank_rows(start, stop)
        numbers = np.arange(rows.start, rows.stop, rows.step)
        own: Ints = numbers[self.worker_places(rows)[worker]]
        return own
