"""Turn the workers' blocks into batches, and advance the position with each delivered batch.

    workers ─► fetch: join blocks, start an exchange ─► deliver: finish it, move the position
                                                             └─► batch, or micro-batches

A finite run has an `Ending`: the row at which the lanes of each stream end, and what is left for
its tail. Every rank ends on the same step. If the last batch is not full, it is padded, or dropped
with tail="drop". With token lengths, the ending is known from the start, unless it is too costly to
compute. Otherwise, it is found like this:

    no ending    workers cut rows from their lanes, until an exchange reports a dry row: one that
                 its lane cannot fill. The batch with this row and all later batches are discarded.
    request      workers report the sizes of the documents that remain in their lanes. The ranks
                 exchange the sizes and pack the same tail (`tail_sharing`).
    ending       workers continue at the first undelivered row. Rows before the dry row are cut from
                 the lanes, all later rows from the tail.

Before the tail of a corpus, workers read the documents of their lanes that rows of other workers
need, and the ranks exchange their tokens (`tail_sharing`). If token lengths determine the ending,
they do so only on several machines.

Token lengths may also replace the exchange of cursors (`KnownLanes`): each rank then computes the
cursors of all lanes, and ranks exchange only their current row.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from cloudload.errors import DatasetError, WorkerError
from cloudload.loading.batch import Batch
from cloudload.loading.delivery import progress, tail_sharing
from cloudload.loading.delivery.block_stream import BlockStream
from cloudload.loading.delivery.collate import count_trained, join_blocks
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.run_log import RunLog
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.delivery.tail_sharing import share_documents
from cloudload.loading.workers.block import join_dealt
from cloudload.loading.workers.token_reader import UntrainedCheck
from cloudload.loading.workers.worker_plan import Phase, Request, WorkerPlan
from cloudload.run import Ending, LaneLog, Position, end_corpus, join_ranges
from cloudload.system import NEVER, Ints

logger = logging.getLogger("cloudload.run")


class _Fetched(NamedTuple):
    """A step that was fetched from the workers but not delivered yet."""

    batches: list[Batch]
    """The micro-batches of this rank; one, unless the option `micro_batch_size` divides it."""
    stop: int
    """The first row of the run after the global batch."""
    window: progress.Window | None
    """The rows that the batch's exchange covers. None if no exchange follows the batch."""
    finish: Callable[[], progress.AgreedWindow | None]


class Iteration(Iterator[Batch]):
    """The batches of one rank, starting at a plan's position."""

    def __init__(
        self,
        plan: WorkerPlan,
        exchange: Exchange,
        log: RunLog,
        start_log: StartLog,
        *,
        has_processes: bool,
        known: progress.KnownLanes | None = None,
    ) -> None:
        self._known = known
        """The lanes of all ranks, or None if ranks exchange them."""
        self._plan, self._position, self._exchange = plan, plan.position, exchange
        self._log, self._start_log = log, start_log
        self._process = os.getpid()
        self._blocks = BlockStream(log, start_log, has_processes=has_processes)
        self._fetched: deque[_Fetched | None] = deque()
        """Steps that wait to be delivered. None marks the end of the run."""
        self._rest: deque[Batch] = deque()
        """The micro-batches of the current step that are not handed out yet."""
        self._fetched_rows, self._window_start = plan.position.rows, plan.position.table_rows
        self._reports: list[progress.Report] = []
        self._has_handed_out = self._is_skipping = self.is_over = False
        self.is_replaced = False
        """Whether a new iteration replaces this one. If so, the pass continues with the new one."""
        self._failure: Exception | None = None
        log.begin_watch()
        is_dry = plan.ending is None and plan.position.is_in_tail
        self._untrained = UntrainedCheck(plan.recipe)
        self._ended = plan.position if is_dry else None
        """The position at which the lanes ended, until the ending is known."""
        self._discarded_tokens = 0
        """The number of tokens before the dry row in the discarded batch: those of this rank, or,
        after the tail is packed, those of all ranks."""

    def __next__(self) -> Batch:
        if self._failure is not None:
            raise self._failure
        if os.getpid() != self._process:
            raise WorkerError(
                f"process {self._process} started this iteration, so process {os.getpid()} cannot "
                "continue it. Create a loader in this process"
            )
        self._log.meter.begin_wait()
        try:
            batch = self._take()
            # here, because after an interrupt before it, the iteration must not continue. Until a
            # step is complete, the state is that before the step, because no checkpoint has the
            # gradients of its first micro-batches
            self._log.record(self._log.position if self._rest else self._position)
        except StopIteration:
            if self._failure is not None:  # closed by another thread, before the end of the data
                raise self._failure from None
            raise
        except Exception as error:
            # later calls must raise too, or the error would look like the end of the data
            self._failure = error
            self.close()
            raise
        except BaseException as error:
            # an interrupt may leave the iteration between two batches, so it cannot continue
            self._failure = WorkerError(
                f"this iteration was interrupted ({error!r}). Iterate over the loader again to "
                "continue after the last complete step"
            )
            self.close()
            raise
        finally:
            self._log.meter.end_wait()
        if not self._is_skipping:
            self._log.watch(self._plan)
            if self._plan.recipe.has_masks:
                numbers = count_trained(batch, len(self._plan.recipe.labels))
                self._log.meter.count_trained(numbers)
        return batch

    def skip(self, number: int) -> None:
        """Read the next `number` steps, or fewer at the end, and record their rows as skipped."""
        self._is_skipping = True
        try:
            for _ in itertools.islice(self, number * self._plan.share.shape.num_batches):
                pass
        finally:
            self._is_skipping = False
            self._log.begin_watch()

    @property
    def is_within_step(self) -> bool:
        """Whether some micro-batches of a step are handed out, and others are not."""
        return bool(self._rest)

    def close(self, reason: str = "") -> None:
        """Stop the workers. The next iteration rereads the rows that the workers had read ahead.

        If there is a `reason` and the data had not ended, later calls of `next` raise an error,
        because `StopIteration` would look like the end of the data.
        """
        if reason and not self.is_over:
            self._failure = self._failure or WorkerError(
                f"this iteration has ended, because {reason}. Iterate over the loader again, "
                "unless you already have a newer iterator"
            )
        self.is_over = True
        self._fetched.clear()
        self._rest.clear()
        self._blocks.close()

    def replace(self) -> None:
        """Stop the workers. The current pass continues with another iteration."""
        self.is_replaced = not self.is_over or self._failure is not None
        self.close()

    # ------------------------------------------------------------ batches

    def _take(self) -> Batch:
        while not self.is_over:
            if self._rest:
                return self._rest.popleft()
            if self._ended is not None:
                self._end_lanes(self._ended)
            if self._position.rows == self._plan.phase.pause:
                self._continue_with(self._plan.ending)
            pause = self._plan.phase.pause
            # do not read ahead before the first batch, because the training loop waits for it
            is_ahead = self._has_handed_out and self._exchange.runs_ahead
            while len(self._fetched) <= is_ahead and self._fetched_rows < pause:
                self._fetched.append(self._fetch())
            fetched = self._fetched.popleft()
            if fetched is None:
                self._end()
            elif self._finish(fetched):
                if not self._has_handed_out:
                    self._start_log.log_batch(self._position)
                self._has_handed_out = True
                self._rest.extend(fetched.batches)
        raise StopIteration

    def _fetch(self) -> _Fetched | None:
        """Take a batch from the workers, and start its exchange. Return None after the last one."""
        plan, start = self._plan, self._fetched_rows
        stop = start + plan.share.global_batch
        end = NEVER if plan.ending is None else plan.ending.end
        if start >= end or (stop > end and plan.delivery.tail == "drop"):
            return None
        if not self._blocks.is_open:
            self._blocks.open(plan)
            for replay in plan.replays():
                self._take_rows(*replay, is_balanced=False)
        rows, batch_rows = self._take_rows(start, stop, is_balanced=plan.share.is_balanced)
        current, index = self._blocks.current, self._blocks.index
        batches = join_blocks(current, index, batch_rows, rows, plan)
        self._fetched_rows = stop
        return _Fetched(batches, stop, *self._start_exchange(stop))

    def _take_rows(
        self, start: int, stop: int, *, is_balanced: bool
    ) -> tuple[range | Ints, list[slice | Ints]]:
        """Advance the workers to this rank's next batch, and append its report to `_reports`.

        The global batch has the rows [start, stop). Returns this rank's rows, int64 [rows], and for
        each worker, the indices of the worker's rows within these.
        """
        plan = self._plan
        self._blocks.advance()
        rows: range | Ints
        if is_balanced:
            rows, batch_rows = join_dealt(self._blocks.current, self._blocks.index)
        else:
            rows = plan.share.rank_rows(start, stop)
            batch_rows = plan.share.rows_by_worker(rows)
        is_foreseen = plan.ending is not None and plan.ending.packed is None
        if is_foreseen or self._known is not None:
            progress.check_not_dry(self._blocks.current, stop, plan.recipe.num_lanes)
        if self._known is not None:
            return rows, batch_rows
        current, index = self._blocks.current, self._blocks.index
        report = progress.report_batch(
            current, index, batch_rows, stop=stop, rank_index=plan.share.index
        )
        self._reports.append(report)
        return rows, batch_rows

    def _start_exchange(
        self, stop: int
    ) -> tuple[progress.Window | None, Callable[[], progress.AgreedWindow | None]]:
        """Start an exchange if its window ends at row `stop`.

        Returns the window, or None, and a function that waits for the exchange.
        """
        plan = self._plan
        if stop - self._window_start < plan.delivery.exchange_every * plan.share.global_batch:
            return None, lambda: None
        window = progress.Window(self._window_start, stop, plan.share.world_size, plan.recipe)
        self._window_start = stop
        if self._known is not None:
            return window, progress.start_check(self._exchange, stop)
        report = progress.merge_reports(self._reports)
        self._reports = []
        return window, window.exchange(self._exchange, report)

    def _finish(self, fetched: _Fetched) -> bool:
        """Finish a batch's exchange and move the position past the batch.

        Returns False if the batch was discarded because the lanes ended in it.
        """
        before, window = self._position, fetched.window
        lanes, table_rows = before.lanes, before.table_rows
        if window is not None:
            with self._log.meter.exchanging():
                joined = fetched.finish()
            if joined is not None:
                recipe, first_dry = window.recipe, window.first_dry(joined)
                stop = min(first_dry, fetched.stop)
                update = progress.Update(recipe, joined, stop)
                lanes = lanes.with_update(update, progress.move_lanes)
                if first_dry < NEVER:
                    self._discard(lanes, first_dry, fetched.batches)
                    return False
                tails = self._plan.tails
                if tails is not None and stop > tails.ending.lane_ends[0]:
                    lanes = LaneLog(tails.end_lanes(lanes.arrays, stop))
            elif self._known is not None:
                lanes = self._known.at(fetched.stop)
            table_rows = fetched.stop
        rows, skipped = fetched.stop, before.skipped
        if self._is_skipping:
            skipped = join_ranges(skipped, (before.rows, rows))
        self._position = Position(
            rows=rows,
            table_rows=table_rows,
            lanes=lanes,
            skipped=skipped,
            batches=before.batches + 1,
            global_batch=rows - before.rows,
            origin=before.origin,
        )
        is_due = window is not None and not self._untrained.is_over
        if is_due and (fault := self._untrained.find_fault(self._position.counts)):
            raise DatasetError(fault)
        return True

    # ------------------------------------------------------------ the end

    def _discard(self, ended: LaneLog, first_dry: int, batches: list[Batch]) -> None:
        """Discard `batches` and all later ones, because the lanes ended at row `first_dry`, which
        is in the step of `batches`."""
        self._discarded_tokens = sum(batch.count_tokens_before(first_dry) for batch in batches)
        for fetched in self._fetched:
            if fetched is not None:
                fetched.finish()
        self._fetched.clear()
        self._blocks.discard()
        self._reports = []
        arrays = ended.arrays
        position = self._position.with_lanes(cursors=arrays.cursors, residues=arrays.residues)
        self._ended = replace(position, rows=first_dry, table_rows=first_dry)

    def _end_lanes(self, ended: Position) -> None:
        """Measure what is left in the lanes, and continue at the first undelivered row."""
        plan = replace(self._plan, position=ended, phase=Phase(request=Request()))
        if plan.inputs.lengths is None:
            self._blocks.open(plan)
            self._blocks.advance()
        message = tail_sharing.join_sizes(plan, self._blocks.current, self._discarded_tokens)
        messages = self._exchange.start(message)()
        sizes = tail_sharing.find_sizes(plan, messages)
        self._ended, self._discarded_tokens = None, tail_sharing.sum_tokens(messages)
        self._continue_with(end_corpus(plan.recipe, self._position, ended, sizes))

    def _continue_with(self, ending: Ending | None) -> None:
        """Share the tail's documents, and continue at the first undelivered row."""
        plan = self._plan = replace(self._plan, position=self._position, phase=Phase(ending))
        share_documents(plan, self._blocks, self._exchange)
        self._blocks.discard()
        self._reports = []
        self._fetched_rows, self._window_start = plan.position.rows, plan.position.table_rows

    def _end(self) -> None:
        """Record the leftover tokens and the documents that no row counts, and stop the workers."""
        rest = tail_sharing.count_rest(self._plan, self._position, self._discarded_tokens)
        self._log.record_end(*rest)
        counts = self._position.counts + self._log.progress.uncounted
        if self._plan.share.index == 0 and (fault := self._untrained.find_fault(counts, 1)):
            logger.warning("%s", fault)
        self.close()
