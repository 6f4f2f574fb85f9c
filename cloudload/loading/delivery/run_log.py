"""The run log of a loader: latest positions, leftover tokens, statistics, and why training waits.

    iteration ── record, record_end ──► RunLog ◄── state_dict, stats, seek ── loader

The loader owns the log. An iteration writes to it without a reference to the loader.

    next() ─► statistics, every second ─► waited for more than 5% of the last 30 s? ─► log why

`WaitLog` logs once why the training loop waits for batches, and how to fix it. The reason is the
stage in which the workers spent most of their time, or the other ranks if this rank waited for
them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from cloudload.config import checks
from cloudload.loading.delivery.bottleneck import find_bottleneck
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.rows import Choice
from cloudload.run import Position, Recipe
from cloudload.stats import (
    COUNTS,
    MOST_SHARE,
    READ,
    TOKENS,
    DeliveryMeter,
    DeliveryStats,
    Stats,
    StreamStats,
)
from cloudload.system import Ints

logger = logging.getLogger("cloudload.run")
_wait_logger = logging.getLogger("cloudload.wait")

WINDOW_S, LOOK_EVERY_S = 30.0, 1.0

KEPT_POSITIONS = 4


class Progress(NamedTuple):
    """The progress of a run. It is replaced as a whole, so no reader finds half of a change."""

    positions: tuple[Position, ...]
    """The latest positions, the last one last."""
    has_read: bool
    dropped: int
    uncounted: Ints
    has_jumped: bool = False
    """Whether the last position was computed from token lengths, and not reached by reading."""

    def moved(self, position: Position) -> Progress:
        """Return the progress at a position that was not reached by reading."""
        has_jumped = self.has_jumped or position.table_rows > self.positions[-1].table_rows
        uncounted = np.zeros_like(position.counts)
        return Progress((position,), self.has_read, 0, uncounted, has_jumped)


class RunLog:
    """The progress of one loader through its run, from a position.

    `before` is the loader's log until now, if any, whose delivery statistics continue.
    """

    def __init__(self, position: Position, before: RunLog | None = None) -> None:
        self.meter: DeliveryMeter = DeliveryMeter() if before is None else before.meter
        self.wait_log: WaitLog = WaitLog() if before is None else before.wait_log
        self._doubted: set[int] = set() if before is None else before._doubted
        self.knows_all_lanes = True
        """Whether this rank knows the cursors of the lanes of all ranks."""
        uncounted = np.zeros_like(position.counts)
        self.progress = Progress((position,), False, 0, uncounted)

    def moved(self, position: Position) -> RunLog:
        """Return a log that continues from a position that was not reached by reading.

        It forgets the earlier positions.
        """
        log = copy(self)
        log.progress = self.progress.moved(position)
        return log

    def begin_watch(self) -> None:
        """Watch the waits from the next batch on, without the start of workers or skipped rows."""
        self.meter.forget_arrivals()
        self.wait_log.restart()

    def watch(self, plan: WorkerPlan) -> None:
        """Record that a batch has arrived in the training loop, and log the waits if they are long.

        `plan` is the plan of the rank's workers.
        """
        self.meter.arrive()
        self.wait_log.look(self.meter, plan)

    def warn_once(self, doubts: Mapping[int, str]) -> None:
        """Log a warning for each stream that may not be text, at most once per stream."""
        for stream in doubts.keys() - self._doubted:
            logger.warning("%s", doubts[stream])
        self._doubted |= doubts.keys()

    def record(self, position: Position) -> None:
        """Record the position after a batch that was delivered or skipped."""
        self.record_all([position])

    def record_all(self, positions: Sequence[Position], *, has_jumped: bool = False) -> None:
        """Record the positions after consecutive batches. `has_jumped` is as in `Progress`."""
        progress = self.progress
        positions = (*progress.positions, *positions)
        # the micro-batches of a step have the same position, so keep the positions of whole steps
        first = sorted({each.rows for each in positions})[-KEPT_POSITIONS:][0]
        positions = tuple(each for each in positions if each.rows >= first)
        self.progress = progress._replace(positions=positions, has_read=True, has_jumped=has_jumped)

    def record_end(self, dropped: int, uncounted: Ints) -> None:
        """Record the end of the data.

        `dropped` is the number of tokens left over. `uncounted`, int64 [streams, counts], has the
        statistics of documents that are not counted with any row.
        """
        self.progress = self.progress._replace(dropped=dropped, uncounted=uncounted)

    @property
    def has_read(self) -> bool:
        """Whether a batch was delivered or skipped."""
        return self.progress.has_read

    @property
    def position(self) -> Position:
        """The position after the last batch, or that of `moved` if there was none since."""
        return self.progress.positions[-1]

    @property
    def last_step(self) -> tuple[Position, Position]:
        """The positions before and after the last batch; equal if no batch followed `moved`."""
        positions = self.progress.positions
        return positions[-2:][0], positions[-1]

    def past(self, lag: int) -> Position:
        """Return the position `lag` batches ago.

        Raises `ValueError` if `lag` is not from 0 to 3, or exceeds the number of batches since
        `moved`.
        """
        lag = checks.as_integer("lag", lag, 0, KEPT_POSITIONS - 1)
        positions = self.progress.positions
        if lag >= len(positions):
            handed_out = len(positions) - 1
            raise ValueError(
                f"lag is {lag}, but only {handed_out} batches were delivered or skipped since the "
                "loader was created, loaded a state, or was moved by seek. Use a lag of at most "
                f"{handed_out}"
            )
        return positions[-1 - lag]

    def find(self, rows: int) -> Position | None:
        """Return the position at row `rows`, or None if it is not that of one of the last steps."""
        return next((each for each in self.progress.positions if each.rows == rows), None)

    def stats(self, recipe: Recipe, backend: Choice) -> Stats:
        """Return the statistics of the run so far."""
        progress = self.progress
        position = progress.positions[-1]
        totals = position.counts + progress.uncounted
        num_tokens = max(1, int(totals[:, TOKENS].sum()))
        streams = {}
        for component in recipe.components:
            before = position.origin.count_documents(component.lanes)
            num_read = before + int(totals[component.streams][:, READ].sum())
            for stream in component.streams:
                each = dict(zip(COUNTS, totals[stream].tolist(), strict=True))
                del each["padding"]
                streams[recipe.labels[stream]] = StreamStats(
                    **each,
                    epoch=num_read / component.lanes.num_positions,
                    share=each["tokens"] / num_tokens,
                    trained=self.meter.trained[stream] if self.meter.trained else None,
                )
        return Stats(
            rows=position.rows,
            **dict(zip(COUNTS, totals.sum(axis=0).tolist(), strict=True)),
            skipped_rows=sum(stop - start for start, stop in position.skipped),
            dropped=progress.dropped,
            streams=streams,
            delivery=self.meter.stats(),
            tokenizer_backend=backend.name,
            tokenizer_backend_reason=backend.reason,
            packing=recipe.config.packing,
        )


class _Look(NamedTuple):
    at: float
    """In `time.monotonic` seconds."""
    stats: DeliveryStats


class WaitLog:
    """Watches how long the training loop waits for a loader's batches, and logs the reason once."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self._next_look, self._has_logged = 0.0, False

    def restart(self) -> None:
        """Discard the statistics so far, such as waits for workers to start or batches to skip."""
        self._looks.clear()

    def look(self, meter: DeliveryMeter, plan: WorkerPlan) -> None:
        """Record the statistics after a batch. Log the waits if they exceed 5% of the last 30 s."""
        if self._has_logged or (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        self._looks.append(_Look(now, meter.stats()))
        while len(self._looks) > 1 and now - self._looks[1].at >= WINDOW_S:
            self._looks.popleft()
        first, last = self._looks[0], self._looks[-1]
        seconds = last.at - first.at
        waited = last.stats.stall_s - first.stats.stall_s
        if seconds >= WINDOW_S and waited > MOST_SHARE * seconds:
            self._has_logged = _log(first.stats, last.stats, seconds, plan)


def _log(before: DeliveryStats, after: DeliveryStats, seconds: float, plan: WorkerPlan) -> bool:
    """Log the waits unless another rank logs them. Returns whether this rank logged them."""
    waited = after.stall_s - before.stall_s
    start = f"the training loop waited for batches for {waited / seconds:.0%} of the last "
    start += f"{seconds:.0f} s ({waited:.1f} s)"
    world = plan.share.world
    if world.size > 1:
        start = f"rank {world.rank}: {start}"
    exchanged = after.exchange_s - before.exchange_s
    if exchanged > waited / 2:
        if world.index:
            return False  # otherwise every rank but the late one would log this
        _wait_logger.info(
            "%s, including %.1f s for other ranks while this rank's rows were ready. If the late "
            "rank's loader is the cause, that rank's log says why",
            start,
            exchanged,
        )
        return True
    found = find_bottleneck(plan, before, after, seconds)
    _wait_logger.info("%s. %s. %s", start, found.work, found.advice)
    return True
