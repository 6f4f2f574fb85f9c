"""One iteration of a loader: from the workers' blocks to batches, and from position to position.

    workers ─► arrive: join blocks, start the exchange ─► hand out: finish the exchange, move the position, return the batch

A finite run changes course once, where the first lane runs short: all that had arrived from there
on is void, the ranks measure what the lanes have left, exchange the sizes, and go on with the rows
of the tail, which end on the same step for all.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cloudload.arrays import NEVER, Ints
from cloudload.batch import Batch
from cloudload.delivery.collate import join_blocks
from cloudload.delivery.exchange import DistributedExchange, Exchange
from cloudload.delivery.progress import Progress, Report, Update, Window, join_progress, move_lanes
from cloudload.errors import DatasetError, StreamChangedError, WorkerError
from cloudload.packing.tables import (
    CURSOR_ORDINAL,
    SIZE_ABSENT,
    SPAN_ROW,
    SPAN_START,
    SPAN_STOP,
    UNIT_SIZE,
)
from cloudload.packing.tail import next_stages, pack_tail
from cloudload.run.position import LaneLog, Position
from cloudload.stats import EMPTY, FILTERED, DeliveryMeter
from cloudload.workers.block import Block
from cloudload.workers.plan import Plan
from cloudload.workers.processes import BatchParts


class _Arrived(NamedTuple):
    """What has come from the workers and waits for its exchange: a batch, or sizes for the tail;
    with neither, the end."""

    batch: Batch | None
    stop: int
    window: Window | None = None
    finish: Callable[[], list[Report]] | None = None
    """Waits for the reports about the window."""
    finish_sizes: Callable[[], list[Ints]] | None = None


class Batches(Iterator[Batch]):
    """The batches of one rank from a plan's position on."""

    def __init__(
        self,
        plan: Plan,
        exchange: Exchange,
        record: Callable[[Position], None],
        record_end: Callable[[int, Ints], None],
        open_blocks: Callable[[Plan], Iterator[BatchParts]],
        *,
        meter: DeliveryMeter,
    ) -> None:
        self._plan, self._position, self._exchange = plan, plan.position, exchange
        self._record, self._record_end, self._open_blocks, self._meter = (
            record,
            record_end,
            open_blocks,
            meter,
        )
        self._process = os.getpid()
        self._blocks: Iterator[BatchParts] | None = None
        self._arrived: deque[_Arrived] = deque()
        self._arrived_rows = plan.position.rows
        self._window_start = plan.window_start
        self._window: list[Progress] = []
        self._handed_out = 0
        self.is_over = False
        self._failure: Exception | None = None
        self._ended = plan.position
        self._is_skipping = False
        self._tokens_before_end = 0

    def __next__(self) -> Batch:
        if self._failure is not None:
            raise self._failure
        if os.getpid() != self._process:
            raise WorkerError(
                "this iteration was begun in another process, which goes on with "
                "it. Make a loader in this one"
            )
        began = time.perf_counter()
        try:
            batch = self._take()
        except StopIteration:
            raise
        except Exception as error:
            # asked again, it must not look like the end of the data
            self._failure = error
            self.close()
            raise
        except BaseException as error:
            # nor may it go on from somewhere between two batches
            self._failure = WorkerError(
                f"this iteration was interrupted ({error!r}). Iterate over the loader anew, after "
                "the last batch handed out"
            )
            self.close()
            raise
        finally:
            self._meter.stall_s += time.perf_counter() - began
        self._record(self._position)
        return batch

    def skip(self, number: int) -> None:
        """Pass over some batches: they are read, counted and recorded as skipped, but not
        returned."""
        self._is_skipping = True
        try:
            for _ in itertools.islice(self, number):
                pass
        finally:
            self._is_skipping = False

    def _take(self) -> Batch:
        while True:
            if not self._arrived:
                self.arrive()
            # one batch ahead, so that its exchange is done when it is asked for; not at first, when
            # the trainer waits
            if (
                self._handed_out
                and isinstance(self._exchange, DistributedExchange)
                and not self._plan.is_measured
            ):
                self.arrive()
            batch = self._finish_first()
            if batch is not None:
                return batch

    def arrive(self) -> None:
        """Take the next batch from the workers and start its exchange; or the sizes of what the
        lanes have left."""
        if self.is_over:
            raise StopIteration
        plan = self._plan
        start = self._arrived_rows
        stop = start + plan.delivery.batch_size * plan.world_size
        if plan.tail is not None and (
            start >= plan.tail.end or (stop > plan.tail.end and plan.delivery.tail == "drop")
        ):
            self._arrived.append(_Arrived(None, start))
            return
        if self._blocks is None:
            self._blocks = self._open_blocks(plan)
            if not plan.is_measured:
                self._take_replays()
        blocks, number = self._next_blocks()
        if plan.is_measured:
            self._arrived.append(
                _Arrived(None, start, finish_sizes=self._exchange.start(self._join_sizes(blocks)))
            )
            return
        rows = plan.rank_rows(start, stop)
        places = plan.worker_places(rows)
        self._window.append(join_progress(blocks, number, places, stop))
        self._arrived_rows = stop
        batch = join_blocks(blocks, number, places, rows, plan.delivery)
        self._arrived.append(_Arrived(batch, stop, *self._start_exchange(stop)))

    def hand_out(self) -> Batch | None:
        """What `next` does once a batch has arrived, for ranks that go in lockstep; None where it
        was no batch."""
        batch = self._finish_first()
        if batch is not None:
            self._record(self._position)
        return batch

    def _finish_first(self) -> Batch | None:
        """Finish the exchange of what arrived first, move the position past it, and return it; None
        where it was no batch."""
        arrived = self._arrived.popleft()
        if arrived.batch is None:
            if arrived.finish_sizes is None:
                self._end()
                raise StopIteration
            self._begin_tail(arrived.finish_sizes())
            return None
        before, window = self._position, arrived.window
        lanes, table_rows, tail = before.lanes, before.table_rows, before.tail
        if window is not None and arrived.finish is not None:
            reports = arrived.finish()
            first_dry = window.first_dry(reports)
            if first_dry < NEVER:
                self._measure(
                    lanes.with_update(Update(window, reports, first_dry), move_lanes),
                    first_dry,
                    arrived.batch,
                )
                return None
            lanes, table_rows = (
                lanes.with_update(Update(window, reports, arrived.stop), move_lanes),
                arrived.stop,
            )
            if self._plan.tail is not None:
                # the lanes stand where they ended
                lanes = self._ended.with_lanes(counts=lanes.arrays.counts).lanes
                table_rows = self._plan.tail_start
                tail = next_stages(
                    tail or (), self._plan.recipe.config.seq_len, table_rows, arrived.stop
                )
        rows = arrived.stop
        skipped = (
            _join_stretches(before.skipped, (before.rows, rows))
            if self._is_skipping
            else before.skipped
        )
        self._position = Position(
            rows, table_rows, lanes, tail, skipped, before.batches + 1, rows - before.rows
        )
        self._handed_out += 1
        return arrived.batch

    def close(self, reason: str = "") -> None:
        """End the workers; whatever they had read ahead is read again by the next iteration.

        With a `reason`, who goes on to ask for batches is told: it must not look like the end of
        the data.
        """
        if reason and not self.is_over:
            self._failure = self._failure or WorkerError(
                f"this iteration has ended: {reason}. Iterate over the loader anew"
            )
        self.is_over = True
        self._arrived.clear()
        self._close_blocks()

    def _close_blocks(self) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close()  # type: ignore[attr-defined]

    def _take_replays(self) -> None:
        for start, stop in self._plan.replays():
            places = self._plan.worker_places(self._plan.rank_rows(start, stop))
            self._window.append(join_progress(*self._next_blocks(), places, stop))

    def _next_blocks(self) -> BatchParts:
        """The blocks that have the next batch; their traffic is counted with the first batch that
        they have."""
        assert self._blocks is not None
        parts = next(self._blocks)
        if not parts.number:
            for block in parts.blocks:
                self._meter.traffic += block.traffic
        return parts

    def _start_exchange(self, stop: int) -> tuple[Window | None, Callable[[], list[Report]] | None]:
        plan = self._plan
        if (
            stop - self._window_start
            < plan.delivery.exchange_every * plan.delivery.batch_size * plan.world_size
        ):
            return None, None
        window = Window(self._window_start, stop, plan.world_size, plan.recipe)
        report = window.report(plan.world_index, self._window)
        self._window_start, self._window = stop, []
        return window, window.exchange(self._exchange, report)

    # ------------------------------------------------------------ the tail

    def _measure(self, ended: LaneLog, first_dry: int, batch: Batch) -> None:
        """Go back to before `batch`, in which the lanes ended at row `first_dry`, and ask what they
        had left."""
        spans = batch.spans[batch.first_row + batch.spans[:, SPAN_ROW] * batch.row_step < first_dry]
        self._tokens_before_end = int((spans[:, SPAN_STOP] - spans[:, SPAN_START]).sum())
        for arrived in self._arrived:
            if arrived.finish is not None:
                arrived.finish()
        self._arrived.clear()
        self._close_blocks()
        self._window = []
        self._ended = self._position.with_lanes(
            cursors=ended.arrays.cursors, residues=ended.arrays.residues
        )
        self._plan = replace(
            self._plan, position=self._ended, is_measured=True, tail_start=first_dry
        )

    def _begin_tail(self, messages: list[Ints]) -> None:
        """Pack what the lanes have left, and go on from before the batch in which they ended."""
        plan, before, ended = self._plan, self._position, self._ended
        try:
            tail = pack_tail(
                plan.recipe.packing,
                start_row=plan.tail_start,
                stages=before.tail or (),
                cursors=ended.cursors[0],
                residues=[ended.residue(0, lane) for lane in range(plan.num_lanes)],
                sizes=self._sizes_by_lane(messages),
            )
        except ValueError as error:
            raise StreamChangedError(
                f"{error}. The state is damaged, or of another corpus, tokenizer or transform"
            ) from error
        if not tail.end:
            streams = ", ".join(plan.recipe.labels)
            raise DatasetError(
                f"no document of {streams} gave a token: all are empty, or left out by the "
                "transform or min_tokens"
            )
        self._tokens_before_end = sum(int(message[1]) for message in messages)
        self._close_blocks()
        self._plan = replace(plan, position=before, is_measured=False, tail=tail)
        self._arrived_rows, self._window_start = before.rows, self._plan.window_start

    def _num_left(self, lane: int) -> int:
        """The ordinals that a lane had left where the lanes ended."""
        return (self._plan.recipe.components[0].lanes.end(lane) or 0) - int(
            self._ended.cursors[0, lane, CURSOR_ORDINAL]
        )

    def _join_sizes(self, blocks: list[Block]) -> Ints:
        """The message of this rank: its virtual index, the tokens of its last rows from lanes, and
        the sizes of what its lanes have left, lane after lane."""
        plan = self._plan
        sizes: dict[int, Ints] = {}
        for worker, block in enumerate(blocks):
            stops = np.cumsum([self._num_left(lane) for lane in plan.own_lanes(worker)])
            sizes.update(
                zip(plan.own_lanes(worker), np.split(block.lengths, stops[:-1]), strict=True)
            )
        return np.concatenate(
            [[plan.world_index, self._tokens_before_end], *(sizes[lane] for lane in sorted(sizes))]
        )

    def _sizes_by_lane(self, messages: list[Ints]) -> list[Ints]:
        sizes: list[Ints] = [np.empty(0, np.int64)] * self._plan.num_lanes
        for message in messages:
            lanes = range(int(message[0]), self._plan.num_lanes, self._plan.world_size)
            stops = 2 + np.cumsum([self._num_left(lane) for lane in lanes])
            for lane, part in zip(
                lanes, np.split(message, [2, *stops.tolist()])[1:-1], strict=True
            ):
                sizes[lane] = part
        return sizes

    def _end(self) -> None:
        """Tell of the tokens that are left over, and of what is left to count."""
        plan, tail, position = self._plan, self._plan.tail, self._position
        assert tail is not None
        dropped = tail.num_tokens(position.rows)
        uncounted: Ints = np.zeros_like(position.counts)
        if position.rows < plan.tail_start:
            dropped += self._tokens_before_end
        elif not tail.num_rows:
            uncounted = self._count_units(tail.units)
        self._record_end(dropped, uncounted)
        self.close()

    def _count_units(self, units: Ints) -> Ints:
        """What documents without a token add to the statistics, where no row is left to count them
        with."""
        recipe = self._plan.recipe
        [component] = recipe.components
        orders, counts = (
            component.orders(self._plan.cache_root),
            np.zeros_like(self._position.counts),
        )
        for lane, ordinal, _, _, size in units[units[:, UNIT_SIZE] != SIZE_ABSENT].tolist():
            epoch, place = component.lanes.place(lane, ordinal)
            stream = recipe.corpus.streams_of(orders(epoch)[place])
            counts[stream, FILTERED if size < 0 else EMPTY] += 1
        return counts


def _join_stretches(
    stretches: tuple[tuple[int, int], ...], new: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    if stretches and stretches[-1][1] == new[0]:
        return (*stretches[:-1], (stretches[-1][0], new[1]))
    return (*stretches, new)
