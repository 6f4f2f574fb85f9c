"""A plan determines the rows that a rank's workers make, and the position at which they start.

    WorkerPlan: the run's recipe, the rank's share of it, the position of the lanes, the ending
      └─► pickled to each worker ─► read_blocks ─► Block, Block, …

Workers make rows. Without an ending, all rows are cut from lanes, until a lane cannot fill one. An
ending says at which row the lanes of each stream end, and what is packed in the rows of its tail:

    token lengths ──────────────────────────────────────────────────────────┐
    a lane cannot fill a row ─► Request: measure what is left ─► exchanged ─┴─► Ending
                                Request: read what is left ───► exchanged ────► SharedDocuments

Workers keep running when they receive a `NextPhase`: rows from another position, or a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from cloudload.config import DeliveryConfig
from cloudload.order import RankShare
from cloudload.run import Ending, Position, Recipe, RunInputs, Tails
from cloudload.system import NEVER, Ints, Tokens

_REPLAYED_ROWS_AT_ONCE = 2_048


@dataclass(frozen=True)
class Request:
    """What the training process asks of the workers before they make the rows of a tail.

    Either the sizes of the documents left in their lanes at the plan's position, or documents for
    tail rows of other workers. Only the owner of a document's lane reads the document, because the
    owner's machine has the document's shard.
    """

    documents: tuple[Ints, ...] | None = None
    """For each worker, the documents to read: int64 [documents, 3], with the lane, ordinal, and
    size of each. None to measure documents."""
    num_blocks: int = 1
    """The number of blocks into which each worker divides its documents."""


@dataclass(frozen=True)
class Phase:
    """What workers do now: make rows, or answer a request."""

    ending: Ending | None = None
    """The ends of the run's streams, or None if they are not known."""
    pause: int = NEVER
    """The row at which workers pause, to share the tail's documents; `NEVER` if they do not."""
    request: Request | None = None
    """What workers do instead of making rows."""


@dataclass(frozen=True)
class SharedDocuments:
    """Documents of a tail that other workers have read and sent to a worker."""

    documents: Ints
    """int64 [documents, 3], with the lane, ordinal, and size of each, as in `Request`."""
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: a pickle has no open tails."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def enter(self, change: NextPhase) -> WorkerPlan:
        """Return a copy of the plan for its next phase, at the position where that phase begins."""
        return replace(self, position=change.position, phase=change.phase, has_jumped=False)

    def part_of(self, change: NextPhase, worker: int) -> NextPhase:
        """Return the part of a change that one worker needs."""
        phase, ending = change.phase, change.phase.ending
        if ending is not None and ending.packed is not None:
            first, step = change.position.rows, self.share.global_batch
            batches = max(0, -(-(ending.end - first) // step))
            rows = self.share.worker_rows(worker, first, first + batches * step)
            phase = replace(phase, ending=ending.take(rows))
        return replace(change, phase=phase, documents=change.documents[worker : worker + 1])

    @property
    def ending(self) -> Ending | None:
        """The ends of the run's streams, or None if they are not known."""
        return self.phase.ending

    @cached_property
    def tails(self) -> Tails | None:
        """The tails of the run's streams, or None if the ends are not known. They are packed when
        they are read."""
        return None if self.ending is None else self.inputs.open_tails(self.ending)

    def replays(self) -> Iterator[tuple[int, int]]:
        """Yield ranges [start, stop) of rows to read and drop before the first batch.

        A range covers the rows of all ranks. Each worker makes one block per range.
        """
        step = _REPLAYED_ROWS_AT_ONCE * self.share.world_size
        for start in range(self.position.table_rows, self.position.rows, step):
            yield start, min(start + step, self.position.rows)
