"""The blocks of one iteration's workers, batch by batch.

workers ─► one block each, of several batches ─► current blocks, index of the batch in them

The workers run from the first `open` until `close`. Each later `open` starts another phase.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from cloudload.data import WorkerCounts
from cloudload.loading.delivery.run_log import RunLog
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.workers.block import Block, limit_batches, limit_blocks_ahead
from cloudload.loading.workers.processes import Blocks, inline_blocks, process_blocks
from cloudload.loading.workers.worker_plan import NextPhase, SharedDocuments, WorkerPlan


class BlockStream:
    """Starts the workers of a plan, and stops them when it is closed or garbage-collected.

    The workers are processes if `has_processes`, and otherwise run in this process.
    """

    def __init__(self, log: RunLog, start_log: StartLog, *, has_processes: bool) -> None:
        self._log, self._start_log, self._has_processes = log, start_log, has_processes
        self._workers: tuple[WorkerPlan, Blocks] | None = None
        self._change: NextPhase | None = None
        """The next phase, until it is sent to the workers."""
        self._documents: tuple[SharedDocuments, ...] = ()
        self._end_workers: Callable[[], object] = _no_workers
        self._closing = threading.Event()
        self.current: list[Block] = []
        """The current block of each worker; empty before the first one."""
        self.index = 0
        """The index of the current batch in the current blocks."""
        self.is_open = False
        """Whether the workers are in a phase. Otherwise they wait for their next phase."""

    @property
    def has_workers(self) -> bool:
        """Whether workers were started and have not been stopped."""
        return self._workers is not None

    def open(self, plan: WorkerPlan) -> None:
        """Start the workers of a plan. If they are running, move them to the plan's phase."""
        self.is_open = True
        if self.has_workers:
            self._change = NextPhase(plan.position, plan.phase, self._documents)
            self._documents = ()
            return
        num_workers, most_batches = plan.share.num_workers, limit_batches(plan.inputs, plan.share)
        counts = WorkerCounts(num_workers)
        blocks_ahead = limit_blocks_ahead(plan.delivery.prefetch_batches, most_batches)
        self._log.meter.begin_iteration(counts, num_workers * blocks_ahead)
        if self._has_processes:
            blocks = process_blocks(plan, counts, self._closing)
        else:
            blocks = inline_blocks(plan, counts)
        self._workers = plan, blocks
        # `finalize` also runs at interpreter exit, while modules still have their globals
        self._end_workers = weakref.finalize(self, _close_blocks, blocks)

    def give(self, documents: tuple[SharedDocuments, ...]) -> None:
        """Send each running worker its part of `documents` at the start of the next phase."""
        self._documents = documents

    def advance(self) -> None:
        """Make the workers' next batch the current one. If a worker failed, raise its error."""
        self.index += 1
        if not self.current or self.index >= self.current[0].num_batches:
            assert self._workers is not None
            plan, blocks = self._workers
            if self._change is not None:
                self._log.meter.num_received = 0
            change, self._change = self._change, None
            self.current, self.index = blocks.send(change), 0
            self._log.meter.receive(len(self.current))
            for block in self.current:
                self._log.meter.traffic += block.traffic
                if plan.share.index == 0:
                    self._log.warn_once(block.doubts)
            self._start_log.log_shard(plan.inputs.cache_root, self.current)

    def discard(self) -> None:
        """Discard the current blocks. The workers wait for their next phase."""
        self.current, self.is_open = [], False

    def close(self) -> None:
        """Stop the workers, also while another thread waits for them."""
        self._closing.set()
        self.discard()
        self._workers = self._change = None
        self._end_workers()


def _close_blocks(blocks: Blocks) -> None:
    # closing the generator raises ValueError at exit if a daemon thread still waits for a block
    with suppress(ValueError):
        blocks.close()


def _no_workers() -> None:
    """Do nothing, because no workers were started."""
