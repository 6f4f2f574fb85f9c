"""A plan determines the rows that a rank's workers make, and the position at which they start.

    WorkerPlan: the run's recipe, the rank's share of it, the position of the lanes, the phase
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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from cloudload.config import DeliveryConfig
from cloudload.order import RankShare
from cloudload.rows import Tail, take_rows
from cloudload.run import Ending, Position, Recipe, RunInputs
from cloudload.system import NEVER, Ints, Tokens

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
        """The first row, from the position on, that is in the tail."""
        return self.ending.lane_ends[0]


@dataclass(frozen=True)
class Mixed:
    """The phase of a mixture whose streams end. Token lengths determine each stream's own tail."""

    ending: Ending
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

    inputs: RunInputs
    delivery: DeliveryConfig
    share: RankShare
    """The lanes and rows of the rank."""
    position: Position
    """The position to continue from."""
    phase: Phase
    has_jumped: bool = False
    """Whether the position was computed from lengths, of which this rank first checks a sample."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.inputs.recipe

    def enter(self, change: NextPhase) -> WorkerPlan:
        """Return a copy of the plan for its next phase, at the position where that phase begins."""
        return replace(self, position=change.position, phase=change.phase, has_jumped=False)

    def part_of(self, change: NextPhase, worker: int) -> NextPhase:
        """Return the part of a change that one worker needs. The plan must be in the new phase."""
        phase, first = change.phase, change.position.rows
        if isinstance(phase, InTail):
            step = self.share.global_batch
            batches = max(0, -(-(phase.tail.end - first) // step))
            rows = self.share.worker_rows(worker, first, first + batches * step)
            phase = InTail(phase.start, take_rows(phase.tail, rows))
        return replace(change, phase=phase, documents=change.documents[worker : worker + 1])

    @cached_property
    def tail(self) -> Tail | None:
        """The tail, or None before it is packed. In the phase `Foreseen`, it is packed on first
        use."""
        if isinstance(self.phase, Foreseen):
            tail = self.inputs.open_tails(self.phase.ending).tail(0)
            before = sum(rows for _, rows in self.phase.ending.stages_of(0))
            return replace(tail, first_row=self.phase.start - before + tail.first_row)
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
        return self.share.end_whole_batches(self.position.rows, self.phase.start)

    @property
    def window_start(self) -> int:
        """The row at which the first window to exchange starts."""
        return self.position.table_rows

    def replays(self) -> Iterator[tuple[int, int]]:
        """Yield ranges [start, stop) of rows to read and drop before the first batch.

        A range covers the rows of all ranks. Each worker makes one block per range.
        """
        step = _REPLAYED_ROWS_AT_ONCE * self.share.world_size
        for start in range(self.window_start, self.position.rows, step):
            yield start, min(start + step, self.position.rows)
