"""What the workers of a rank are asked for, and what they give back: a plan, and blocks.

Plan     the recipe of the rows, the rank's place in the world, and where the lanes stand          picklable, made once
Block    a worker's rows of one batch, with their spans and the cursors after them                 one a worker and batch
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cloudload.config import DeliveryConfig
from cloudload.gate import Choice
from cloudload.lanes import Ints, rank_rows, worker_of_rows
from cloudload.position import Position
from cloudload.recipe import Recipe
from cloudload.tail import Tail
from cloudload.tokenizer import Tokens

# enough in one call that the tokenizer's work hides ours, and not so much that anybody waits for it
_TOKENS_AT_ONCE, _ROWS_AT_ONCE = 65_536, 32
_REPLAYED_ROWS_AT_ONCE = 2_048

NOT_DRY = 1 << 62


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
    """Whether the sizes of all documents that the lanes have left are asked for, in place of rows."""
    tail_start: int = NOT_DRY
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
        return max(1, min(_ROWS_AT_ONCE, _TOKENS_AT_ONCE // self.recipe.config.seq_len) // rows_of_worker)

    @property
    def window_start(self) -> int:
        """The row from which on rows have yet to be exchanged."""
        return self.position.table_rows if self.position.rows < self.tail_start else self.position.rows

    def replays(self) -> list[tuple[int, int]]:
        """The stretches [start, stop) of rows that are read again, each for one block of each worker."""
        step = _REPLAYED_ROWS_AT_ONCE * self.world_size
        return [(start, min(start + step, self.position.rows)) for start in range(self.window_start, self.position.rows, step)]

    def own_lanes(self, worker: int) -> range:
        """The lanes of one worker."""
        return range(self.world_index, self.num_lanes, self.world_size)[worker :: self.num_workers]

    def rank_rows(self, start: int, stop: int) -> tuple[range, Ints]:
        """The rows of this rank among [start, stop), and the worker of each."""
        rows = rank_rows(start, stop, self.world_index, self.world_size)
        return rows, worker_of_rows(rows, self.num_lanes, self.world_size, self.num_workers)


@dataclass(frozen=True)
class Block:
    """What one worker adds to one batch of its rank."""

    tokens: Tokens
    """int32 [rows, seq_len], in the order of the rank's rows."""
    lengths: Ints
    """int64 [rows]: the real tokens at the start of each row; the rest is padding. Where a plan is measured, document sizes."""
    cursors: Ints
    """int64 [rows, 2]: the lane's cursor after each row."""
    residues: list[bytes]
    """The lane's residue after each row."""
    spans: Ints
    """int64 [spans, 6]: row of the block, stream, epoch, sample, start, stop."""
    counts: Ints
    """int64 [streams, counts]: what these rows add to the statistics, by `stats.COUNTS`."""
    first_dry: int
    """The first row of the run that its lane could not fill, from which on all is void; `NOT_DRY` where there is none."""
