"""The blocks of one iteration's workers, batch by batch.

workers ─► one block each, of several batches ─► current blocks, number of the batch in them
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

from cloudload.cache.counters import WorkerCounts
from cloudload.delivery.run_log import RunLog
from cloudload.delivery.start_log import StartLog
from cloudload.workers.block import Block
from cloudload.workers.plan import Plan

OpenBlocks = Callable[[Plan, WorkerCounts], Iterator[list[Block]]]
"""Starts the workers of a plan, and repeatedly yields one block of each worker."""


class BlockStream:
    """Starts the workers of a plan, and ends them when it is closed or no longer used."""

    def __init__(self, open_blocks: OpenBlocks, log: RunLog, start_log: StartLog) -> None:
        self._open_blocks, self._log, self._start_log = open_blocks, log, start_log
        self._opened: tuple[Plan, Iterator[list[Block]]] | None = None
        self._end_workers: Callable[[], object] = _no_workers
        self.current: list[Block] = []
        """The current block of each worker; empty before the first one."""
        self.number = 0
        """The index of the current batch in the current blocks."""

    @property
    def is_open(self) -> bool:
        """Whether workers were started and not ended."""
        return self._opened is not None

    def open(self, plan: Plan) -> None:
        """Start the workers of a plan."""
        counts = WorkerCounts(plan.num_workers)
        self._log.meter.begin_iteration(counts, plan.num_workers * plan.blocks_ahead)
        blocks = self._open_blocks(plan, counts)
        self._opened = plan, blocks
        # `finalize` also runs at interpreter exit, while modules still have their globals
        self._end_workers = weakref.finalize(self, _close_blocks, blocks)

    def advance(self) -> None:
        """Make the workers' next batch the current one. Raises the errors of workers."""
        self.number += 1
        if not self.current or self.number >= self.current[0].num_batches:
            assert self._opened is not None
            plan, blocks = self._opened
            self.current, self.number = next(blocks), 0
            self._log.meter.num_received += len(self.current)
            for block in self.current:
                self._log.meter.traffic += block.traffic
                if plan.world_index == 0:
                    self._log.warn_once(block.doubts)
            self._start_log.log_shard(plan, self.current)

    def close(self) -> None:
        """End the workers."""
        self._opened, self.current = None, []
        self._end_workers()


def _close_blocks(blocks: Iterator[list[Block]]) -> None:
    # raised at exit if a daemon thread is still waiting for a block
    with suppress(ValueError):
        blocks.close()  # type: ignore[attr-defined]


def _no_workers() -> None:
    """Do nothing, because no workers were started."""
