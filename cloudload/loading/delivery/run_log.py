"""The run log of a loader: latest positions, tokens left over at the end, and statistics.

    iteration ── record, record_end ──► RunLog ◄── state_dict, stats, seek ── loader

The loader owns the log. An iteration writes to it without a reference to the loader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from cloudload.config.checks import as_integer
from cloudload.loading.delivery.wait_log import WaitLog
from cloudload.rows.tokenization.backend import Choice
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.stats import COUNTS, READ, TOKENS, DeliveryMeter, Stats, StreamStats
from cloudload.system.arrays import Ints

logger = logging.getLogger("cloudload.run")

KEPT_POSITIONS = 4


class Progress(NamedTuple):
    """The progress of a run. It is replaced as a whole, so no reader finds half of a change."""

    positions: tuple[Position, ...]
    """The latest positions, the last one last."""
    has_read: bool
    dropped: int
    uncounted: Ints

    def moved(self, position: Position) -> Progress:
        """Return the progress at a position that was not reached by reading."""
        return Progress((position,), self.has_read, 0, np.zeros_like(position.counts))


class RunLog:
    """The progress of one loader through its run, from the position `started_at`.

    `before` is the loader's log until now, if any, whose delivery statistics continue.
    """

    def __init__(self, started_at: Position, before: RunLog | None = None) -> None:
        self.meter: DeliveryMeter = DeliveryMeter() if before is None else before.meter
        self.wait_log: WaitLog = WaitLog() if before is None else before.wait_log
        self._doubted: set[int] = set() if before is None else before._doubted
        self.started_at = started_at
        self.knows_all_lanes = True
        """Whether this rank knows the cursors of the lanes of all ranks."""
        uncounted = np.zeros_like(started_at.counts)
        self.progress = Progress((started_at,), False, 0, uncounted)

    def move_to(self, position: Position) -> None:
        """Continue from a position that was not reached by reading, and forget the earlier ones."""
        self.progress = self.progress.moved(position)

    def moved(self, position: Position) -> RunLog:
        """Return a log that continues at a position, as `move_to` does, without changing this."""
        log = copy(self)
        log.move_to(position)
        return log

    def warn_once(self, doubts: Mapping[int, str]) -> None:
        """Log a warning for each stream that may not be text, at most once per stream."""
        for stream in doubts.keys() - self._doubted:
            logger.warning("%s", doubts[stream])
        self._doubted |= doubts.keys()

    def record(self, position: Position) -> None:
        """Record the position after a batch that was delivered or skipped."""
        self.record_all([position])

    def record_all(self, positions: Sequence[Position]) -> None:
        """Record the positions after consecutive batches."""
        progress = self.progress
        positions = (*progress.positions, *positions)[-KEPT_POSITIONS:]
        self.progress = progress._replace(positions=positions, has_read=True)

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
        """The position after the last batch, or the latest one passed to `move_to`."""
        return self.progress.positions[-1]

    @property
    def last_step(self) -> tuple[Position, Position]:
        """The positions before and after the last batch; equal if no batch followed `move_to`."""
        positions = self.progress.positions
        return positions[-2:][0], positions[-1]

    def past(self, lag: int) -> Position:
        """Return the position `lag` batches ago.

        Raises `ValueError` if `lag` is not from 0 to 3, or exceeds the number of batches since
        `move_to`.
        """
        lag = as_integer("lag", lag, 0, KEPT_POSITIONS - 1)
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
        """Return the position at row `rows`, or None if it is not one of the last 4 positions."""
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
