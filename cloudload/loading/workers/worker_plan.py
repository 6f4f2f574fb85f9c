"""A plan determines the rows that a rank's workers make, and the position at which they start.

    Plan: the run's recipe, the rank's index in the world, the position of the lanes, the phase
      └─► pickled to each worker ─► read_blocks ─► Block, Block, …

A run is always in one of these phases. An endless run in which no stream ends is always Steady:

    Steady ── a lane cannot fill row `start` ──► Measuring ── sizes exchanged
                             end ◄── InTail ◄── documents exchanged ── Sharing ◄──┘
    Foreseen ── token lengths determine the row `start` and the tail in advance ───────────► end
             └── several machines ──► Sharing ── documents exchanged ──► Foreseen ─────────► end
    Mixed ── token lengths determine the ends and tails of a mixture's streams ────────────► end

Workers keep running through all phases. At the start of each phase, they receive a `NextPhase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cloudload.config import DeliveryConfig, choices
from cloudload.order import rank_rows, uneven_deal, worker_of_rows
from cloudload.rows import Choice, Tail, take_rows
from cloudload.run import Ending, MixtureEnding, Position, Recipe, RunLengths, length_files
from cloudload.system import NEVER, Ints, Tokens

# maximum rows per block if a row has up to `_TOKENS_OF_ROW` tokens: large enough to amortize fixed
# costs, small enough to keep latency low
_ROWS_AT_ONCE = {choices.HF: 128, choices.FASTOKENS: 1024, choices.NO_BACKEND: 1024}
_TOKENS_OF_ROW = 2_048
_REPLAYED_ROWS_AT_ONCE = 2_048


@dataclass(frozen=True)
class Steady:
    """The phase in which all rows are cut from the lanes."""

    start: int = NEVER
    """The row at which the lanes end, which is not known in this phase."""


@dataclass(frozen=True)
class Measuring:
    """The phase in which workers report the sizes of the documents left in lanes at row `start`."""

    start: int


@dataclass(frozen=True)
class Sharing:
    """The phase in which workers read documents of their lanes for the tail rows of other workers.

    Only the owner of a document's lane reads the document, because the owner's machine has the
    document's shard.
    """

    start: int
    """The row at which the lanes ended."""
    documents: tuple[Ints, ...]
    """For each worker, int64 [documents, 3]: the lane, ordinal, and size of each document."""
    num_blocks: int
    """The number of blocks into which each worker divides its documents."""


@dataclass(frozen=True)
class InTail:
    """The phase of the tail, which consists of row `start` and all later rows."""

    start: int
    tail: Tail


@dataclass(frozen=True)
class Foreseen:
    """The phase of a run whose end is computed in advance, from token lengths."""

    ending: Ending
    pauses: bool = False
    """Whether the workers pause before the tail, to share the tail's documents."""

    @property
    def start(self) -> int:
        """The first row of the tail."""
        return self.ending.start


@dataclass(frozen=True)
class Mixed:
    """The phase of a mixture whose streams end. Token lengths determine each stream's own tail."""

    ending: MixtureEnding
    start: int = NEVER
    """`NEVER`, because no row is in a tail of all lanes."""


Phase = Steady | Measuring | Sharing | InTail | Foreseen | Mixed


@dataclass(frozen=True)
class SharedDocuments:
    """Documents of a tail that other workers have read and sent to a worker."""

    lanes: Ints
    """The flat lane of each document: int64 [documents]."""
    ordinals: Ints
    """The ordinal of each document in its lane: int64 [documents]."""
    sizes: Ints
    """The number of tokens of each document, including bos and eos: int64 [documents]."""
    tokens: Tokens
    """The tokens of all documents, including bos and eos: int32 [tokens]."""


@dataclass(frozen=True)
class NextPhase:
    """The next phase of a plan, and the position at which workers enter it. It can be pickled."""

    position: Position
    """The position to continue from."""
    phase: Phase
    documents: tuple[SharedDocuments, ...] = ()
    """For each worker, the documents of the tail that other workers have read for it; or ()."""


@dataclass(frozen=True)
class WorkerPlan:
    """The input of one rank's workers. It can be pickled if the transform can."""

    recipe: Recipe
    delivery: DeliveryConfig
    backend: Choice
    """The tokenizer backend that encodes documents."""
    cache_root: Path
    world_index: int
    """The virtual index of the rank; see `World.index`."""
    world_size: int
    hosts: tuple[int, ...]
    """The machine of each rank, by virtual index."""
    num_workers: int
    """Number of workers of the rank, at least 1."""
    position: Position
    """The position to continue from."""
    phase: Phase
    lengths: length_files.CorpusLengths | None = None
    """The lengths of the samples. Each document that is read is compared with its length."""
    has_jumped: bool = False
    """Whether the position was computed from lengths, of which this rank first checks a sample."""

    def enter(self, change: NextPhase) -> WorkerPlan:
        """Return a copy of the plan for its next phase, at the position where that phase begins."""
        return replace(self, position=change.position, phase=change.phase, has_jumped=False)

    def part_of(self, change: NextPhase, worker: int) -> NextPhase:
        """Return the part of a change that one worker needs. The plan must be in the new phase."""
        phase, first = change.phase, change.position.rows
        if isinstance(phase, InTail):
            batches = max(0, -(-(phase.tail.end - first) // self.global_batch))
            rows = self.worker_rows(worker, first, first + batches * self.global_batch)
            phase = InTail(phase.start, take_rows(phase.tail, rows))
        return replace(change, phase=phase, documents=change.documents[worker : worker + 1])

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the run."""
        return self.recipe.num_lanes

    @property
    def rank(self) -> int:
        """The data-parallel rank. Ranks are consecutive on each machine."""
        order = sorted(range(self.world_size), key=lambda index: (self.hosts[index], index))
        return order.index(self.world_index)

    def compares(self, worker: int) -> bool:
        """Whether a worker compares its IDs with those of hf.

        Only the first worker of each machine does.
        """
        return worker == 0 and self.hosts.index(self.hosts[self.world_index]) == self.world_index

    @property
    def is_even(self) -> bool:
        """Whether the world size divides the number of lanes, so that a rank owns whole lanes.

        Otherwise, rows are dealt to ranks, which find the documents of a row from token lengths.
        """
        return self._dealing is None

    @cached_property
    def _dealing(self) -> uneven_deal.UnevenDeal | None:
        """The assignment of rows to ranks in an uneven world; None if the world is even."""
        lanes = [component.lanes for component in self.recipe.components]
        return uneven_deal.deal_lanes(lanes, np.array(self.hosts))

    @cached_property
    def tail(self) -> Tail | None:
        """The tail, or None before it is packed. In the phase `Foreseen`, it is packed on first
        use."""
        if isinstance(self.phase, Foreseen):
            assert self.lengths is not None
            lengths = RunLengths(self.recipe, self.cache_root, self.lengths)
            return lengths.pack_tail(self.phase.ending)
        return self.phase.tail if isinstance(self.phase, InTail) else None

    @cached_property
    def end(self) -> int | None:
        """The number of rows in the run, or None if it is not known."""
        if isinstance(self.phase, Foreseen):
            return self.phase.ending.end
        if isinstance(self.phase, Mixed):
            end = self.phase.ending.end
            return None if end == NEVER else end
        return self.phase.tail.end if isinstance(self.phase, InTail) else None

    @cached_property
    def pause(self) -> int:
        """The first row of the batch in which the tail begins, if the workers pause there.

        `NEVER` if the workers do not pause.
        """
        if not (isinstance(self.phase, Foreseen) and self.phase.pauses):
            return NEVER
        return self.end_whole_batches(self.phase.start)

    def end_whole_batches(self, row: int) -> int:
        """The row at which the last whole global batch before `row` ends, counting batches from the
        position."""
        left = max(0, row - self.position.rows)
        return self.position.rows + left // self.global_batch * self.global_batch

    @property
    def batches_at_once(self) -> int:
        """Maximum number of batches in a block, the same for every worker."""
        rows_of_worker = -(-self.delivery.batch_size // self.num_workers)
        most = _ROWS_AT_ONCE[self.backend.name]
        most = min(most, most * _TOKENS_OF_ROW // self.recipe.config.seq_len)
        return max(1, most // rows_of_worker)

    @property
    def blocks_ahead(self) -> int:
        """Maximum number of finished blocks by which a worker may be ahead of the training loop."""
        return max(2, -(-self.delivery.prefetch_batches // self.batches_at_once))

    @cached_property
    def global_batch(self) -> int:
        """Number of rows per step, across all ranks."""
        return self.delivery.batch_size * self.world_size

    @property
    def window_start(self) -> int:
        """The row at which the first window to exchange starts."""
        return self.position.table_rows

    def replays(self) -> Iterator[tuple[int, int]]:
        """Yield ranges [start, stop) of rows to read and drop before the first batch.

        A range covers the rows of all ranks. Each worker makes one block per range.
        """
        step = _REPLAYED_ROWS_AT_ONCE * self.world_size
        for start in range(self.window_start, self.position.rows, step):
            yield start, min(start + step, self.position.rows)

    def own_lanes(self, worker: int) -> Sequence[int]:
        """The lanes of one worker, ascending."""
        if self._dealing is None:
            own: Sequence[int] = range(self.world_index, self.num_lanes, self.world_size)
        else:
            own = np.flatnonzero(self._dealing.owners == self.world_index).tolist()
        return own[worker :: self.num_workers]

    def machine_lanes(self) -> Ints:
        """The lanes of all ranks on this rank's machine, ascending: int64 [lanes]."""
        return np.flatnonzero(self.lane_hosts() == self.hosts[self.world_index])

    def lane_hosts(self) -> Ints:
        """The machine of the rank that owns each lane: int64 [lanes]."""
        return uneven_deal.find_lane_hosts(self.num_lanes, np.array(self.hosts), self._dealing)

    def rank_rows(self, start: int, stop: int) -> range | Ints:
        """The rows of this rank in the global batches [start, stop), ascending: int64 [rows].

        They are a range if the world is even.
        """
        if self._dealing is None:
            return rank_rows(start, stop, self.world_index, self.world_size)
        dealt = [
            self._dealing.deal(first, self.delivery.batch_size)[self.world_index]
            for first in range(start, stop, self.global_batch)
        ]
        rows: Ints = np.concatenate(dealt)
        return rows

    def rows_by_worker(self, rows: range | Ints) -> list[slice | Ints]:
        """The indices of each worker's rows within the rank's `rows`.

        int64 [rows] for each worker, or a slice if there is only one worker.
        """
        if self.num_workers == 1:
            return [slice(None)]
        if isinstance(rows, range):
            workers = worker_of_rows(rows, self.num_lanes, self.world_size, self.num_workers)
        else:
            assert self._dealing is not None
            workers = self._dealing.workers_of(rows, self.num_workers)
        return [np.flatnonzero(workers == worker) for worker in range(self.num_workers)]

    def worker_of(self, lanes: Ints) -> Ints:
        """For each lane or row, the index of its worker within its rank: int64 [lanes].

        The world must be even, and all ranks must have the same number of workers.
        """
        return worker_of_rows(lanes, self.num_lanes, self.world_size, self.num_workers)

    def worker_rows(self, worker: int, start: int, stop: int) -> Ints:
        """The rows of one worker within [start, stop): int64 [rows], ascending."""
        rows = self.rank_rows(start, stop)
        own: Ints = np.asarray(rows, np.int64)[self.rows_by_worker(rows)[worker]]
        return own
