"""Read and count the batches of the current run: prepare iterations, and keep at most one alive.

    pass 1 ──► iteration ── workers, exchange
    pass 2 ──►     │          `stop_every` ends a pass: the iteration is kept for the next one
                   └─ not kept: only a weak reference remains, and the workers are stopped

The number of global batches in a pass, in a run, and in epochs of the data follows from the rows.
The rows are known from token lengths, or from documents that are one row each.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cloudload.config import DeliveryConfig, checks
from cloudload.data import cache_folder
from cloudload.errors import WorkerError
from cloudload.loading.current_run import CurrentRun
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.iteration import Iteration
from cloudload.loading.delivery.rank_checks import list_facts
from cloudload.loading.delivery.run_log import Progress, RunLog
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.delivery.working_set import (
    check_cache_limit,
    explain_later_working_set,
    open_current_orders,
    start_current_orders,
)
from cloudload.loading.delivery.world import Membership, count_cores, explain_few_cores
from cloudload.loading.preparation import (
    check_alone,
    check_balance,
    check_cache_limit_of,
    find_known,
    foresee,
    make_worker_plan,
)
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.run import MOST_ROWS, Position
from cloudload.stats import READ
from cloudload.system import NEVER, activity

logger = logging.getLogger("cloudload.loader")

NO_DATASET = (
    "A CloudLoader is not a dataset. Iterate over it directly, and do not wrap it in a DataLoader. "
    "With the Hugging Face Trainer, use cloudload.integrations.transformers.CloudloadTrainer"
)
_WORKING = "working in the training process"
"""The activity reported for a slow batch if the training process waits for nothing specific."""


class _Calls:
    """Refuses a call while another one runs, in this or another thread.

    Only a weak reference to the call remains, so that a call whose end is interrupted ends with the
    objects of its frames.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.running: Callable[[], _Call | None] = _find_no_call

    def __reduce__(self) -> tuple[Any, ...]:
        return _Calls, ()

    def begin(self, name: str) -> _Call:
        call = _Call(self, name)
        with self._lock:
            if (running := self.running()) is not None:
                raise WorkerError(
                    f"{name} was called before {running.name} had returned in thread "
                    f"{running.thread.name!r}. Make the calls of a loader one after another, such "
                    "as in one thread. Its state and statistics can be read at any time"
                )
            self.running = weakref.ref(call)
        return call


class _Call:
    def __init__(self, calls: _Calls, name: str) -> None:
        self._calls, self.name, self.thread = calls, name, threading.current_thread()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._calls.running = _find_no_call


def _find_no_call() -> None:
    """Find no running call."""


class Reader:
    """Creates the iterations of a loader's passes, and keeps one alive between two passes."""

    def __init__(self, run: CurrentRun, member: Membership, start_log: StartLog) -> None:
        self.now = run, member
        """The current run, and the rank of this process in the current world. Always replaced as a
        pair, after the iteration of the previous pair is stopped."""
        self._calls = _Calls()
        self._start_log = start_log
        self._iteration: Callable[[], Iteration | None] = _no_iteration
        self._kept: Iteration | None = None
        self._has_counted_cores = self._has_measured = False

    @property
    def run(self) -> CurrentRun:
        """The current run."""
        return self.now[0]

    @property
    def member(self) -> Membership:
        """The rank of this process in the current world."""
        return self.now[1]

    def __getstate__(self) -> dict[str, Any]:
        if self._iteration() is not None or self._kept is not None:
            raise TypeError(
                "a CloudLoader cannot be pickled or copied once it has begun to iterate. Create "
                "the loader in the process that iterates over it, and pass its state_dict()"
            )
        return self.__dict__

    def begin_call(self, name: str) -> _Call:
        """Begin a call that moves the loader, and that ends with its `with` block.

        Raises `WorkerError` if another such call is running.
        """
        return self._calls.begin(name)

    # ------------------------------------------------------------ passes

    def start_iteration(self) -> Iteration:
        """Return the previous pass's iteration if it can continue, otherwise a new one."""
        kept, self._kept = self._kept, None
        return self._iterate() if kept is None or kept.is_over else kept

    def keep_iteration(self, iteration: Iteration) -> None:
        """Keep an iteration for the next pass unless it is over. Its workers keep reading ahead."""
        self._kept = None if iteration.is_over else iteration

    def count_passes(self, position: Position | None = None) -> int:
        """Count the passes completed at a position; by default, at the current one.

        With stop_every="epoch", it is computed from the number of documents read. Otherwise, it is
        computed from the number of rows delivered and the current size of a pass in rows, so it is
        also defined if earlier batches had a different size. Without `stop_every`, it is 0.
        """
        run, member = self.now
        if member.delivery.stop_every is None:
            return 0  # return early, because finding the world takes tens of microseconds per batch
        position = position or run.position
        if rows_per_pass := self.count_rows_per_pass():
            return position.rows // rows_per_pass
        [component] = run.recipe.components
        before = position.origin.count_documents(component.lanes)
        num_read = before + int(position.counts[:, READ].sum())
        # exclude the pass over the last epoch, because the run ends it, not `stop_every`
        last = (run.recipe.config.epochs or NEVER) - 1
        return min(num_read // component.lanes.num_positions, last)

    def count_rows_per_pass(self) -> int:
        """Return the number of rows in a pass, or 0 if `stop_every` is not a number of batches."""
        every = self.member.delivery.stop_every
        return every * self.member.global_batch if isinstance(every, int) else 0

    def take_back(self, log: RunLog, before: Progress, error: str) -> None:
        """Return `log` to an earlier progress. If it had recorded batches, end the iteration."""
        if log.progress is before:
            return
        log.progress = before
        if log is self.run.log:
            self.stop(f"a batch was not delivered ({error})")

    def make_wait(self) -> activity.Wait:
        """Return a `Wait` that reports a batch that does not arrive."""
        return activity.Wait(self._report_wait, _WORKING, self._start_log.notice)

    def _report_wait(self, waited_s: float, what: str) -> None:
        """Log that a batch has not arrived after `waited_s` seconds, because of `what`."""
        world = self.member.world
        rank = f"rank {world.rank} " if world.size > 1 else ""
        logger.warning("%swaited %.0f s for a batch: %s", rank, waited_s, what)

    def skip(self, number: int) -> None:
        """Skip the next `number` global batches, or fewer if the data ends first."""
        log = self.run.log
        before = log.progress
        try:
            with self.make_wait():
                self._skip(number)
        except BaseException as error:
            self.take_back(log, before, repr(error))  # skip all batches or none
            raise

    def _skip(self, number: int) -> None:
        iteration, run, global_batch = self._iteration(), self.run, self.member.global_batch
        most = (MOST_ROWS - run.position.rows) // global_batch
        number = checks.as_integer("number", number, 0, max(0, most))
        if iteration is not None and iteration.is_within_step:
            # the step is skipped as a whole, because the state is still before it
            iteration.replace()
        if iteration is None or iteration.is_over:
            if run.skip_batches(number, global_batch):
                return
            iteration = self._iterate()
        iteration.skip(number)

    def stop(self, reason: str) -> None:
        """Stop the current iteration, if any. If used later, it raises an error with `reason`."""
        iteration, self._kept = self._iteration(), None
        if iteration is not None:
            iteration.close(reason)
        self._iteration = _no_iteration  # only now, so that after an interrupt, `stop` closes it

    def resume(self, run: CurrentRun, why: str) -> None:
        """Continue with a run at another position, which it has because of `why`."""
        self.stop(why)
        self.now = run, self.member

    def _replace_iteration(self) -> None:
        """Stop the current iteration, if any. A pass in progress continues with a new one."""
        iteration, self._kept = self._iteration(), None
        if iteration is not None:
            iteration.replace()
        self._iteration = _no_iteration

    def move(self, member: Membership, rows: int | None) -> None:
        """Replace the membership, and continue at row `rows`; by default, at the current position.

        A pass in progress continues with a new iteration. Raises the errors of
        `CloudLoader.set_world`. After an error, nothing has changed.
        """
        run, before = self.now
        run.check_knows_all_lanes()
        position = run.position if rows is None else self._find_position(rows)
        check_cache_limit_of(run, member)
        self._replace_iteration()
        before.disconnect()
        self.now = run.moved(position), member
        if member.is_first:
            row = f"{position.rows:,}"
            logger.info("from row %s on, there are %d ranks", row, member.delivery.dp_world_size)

    def set_weights(self, weights: Mapping[str, float], at_row: int | None) -> None:
        """Set the weights of a mixture's streams from a row on; by default, the next one.

        A pass in progress continues with a new iteration. Raises the errors of
        `CloudLoader.set_weights`. After an error, nothing has changed.
        """
        run, member = self.now
        run.check_knows_all_lanes()
        first, iteration = run.position.rows, self._iteration()
        row = first if at_row is None else checks.as_integer("at_row", at_row, first, MOST_ROWS)
        if iteration is not None and iteration.is_within_step:
            raise ValueError(
                "a step has micro-batches that are not delivered yet. Set weights between two steps"
            )
        changed = run.reweighed(weights, row)
        _ = changed.settled_recipe  # raises if a stream's end cannot be found
        self._replace_iteration()
        self.now = changed, member

    def _find_position(self, rows: int) -> Position:
        """Return the position at a row, which may be one of the last positions.

        Counts the batches before the row, because other ranks may have been handed them.
        """
        run, before = self.run, self.run.position
        global_batch = before.global_batch or self.member.global_batch
        if (found := run.log.find(checks.as_integer("rows", rows, 0))) is not None:
            return found
        found = run.find_position(rows, global_batch)
        batches = before.batches - (before.rows - found.rows) // global_batch
        return replace(found, batches=batches, global_batch=global_batch)

    def close(self) -> None:
        """Stop the iteration, and close the connection. The next iteration opens a new one."""
        self.stop("the loader was closed")
        self.member.disconnect()

    # ------------------------------------------------------------ numbers of batches

    @property
    def is_endless(self) -> bool:
        """Whether a pass never ends."""
        run, member = self.now
        if member.delivery.stop_every is not None:
            return False
        if not run.recipe.has_tails:
            return True
        return run.ending is not None and run.ending.end == NEVER

    def count_pass(self) -> int:
        """Count the batches in a full pass, or in the whole run without `stop_every`.

        A step may have several batches, its micro-batches. Raises `TypeError` if the number is
        unknown.
        """
        run, member = self.now
        delivery, num_batches = member.delivery, member.shape.num_batches
        if isinstance(delivery.stop_every, int):
            return delivery.stop_every * num_batches
        rows = None if delivery.stop_every is not None else run.count_rows()
        if rows is None:
            raise TypeError(
                f"the number of batches is unknown, because {_explain_unknown(run, delivery)}. Or "
                f"set stop_every=N. {NO_DATASET}"
            )
        is_dropped = delivery.tail == "drop"
        steps = rows // member.global_batch if is_dropped else -(-rows // member.global_batch)
        return steps * num_batches

    def count_epochs(self, epochs: int) -> int:
        """Count the batches in `epochs` epochs of the data.

        Raises `ValueError` if the number is unknown.
        """
        run, member = self.now
        rows = run.count_rows_of_epochs(epochs)
        if rows is None:
            raise ValueError(
                "the number of batches in an epoch is unknown, because there are no token lengths. "
                "Run cloudload count, or set a number of batches"
            )
        return -(-rows // member.global_batch)

    # ------------------------------------------------------------ iterations

    def worker_plan(self) -> WorkerPlan:
        """Create the plan, the cache folder, and the orders of the current epochs.

        Raises the errors of `CloudLoader.plan`.
        """
        run, member = self.now
        plan = make_worker_plan(run, member)
        if member.is_first:
            check_balance(plan.share, plan.delivery)
        if member.delivery.num_workers and member.is_first:
            self._explain_num_workers(member.delivery.num_workers, plan.share.num_workers)
        cache_folder.open_cache_folder(plan.inputs.cache_root)
        began = time.monotonic()
        current, is_ready = (plan.inputs, plan.share, plan.position), True
        if plan.delivery.cache_limit_bytes() is None:
            is_ready = start_current_orders(*current)
        else:
            orders = open_current_orders(*current)
            check_cache_limit(plan.recipe, plan.delivery, plan.share, orders)
        seconds = time.monotonic() - began if is_ready else None
        self._start_log.log_order(plan.recipe, plan.share, seconds)
        return plan

    def _explain_num_workers(self, asked: int, used: int) -> None:
        if used < asked:
            message = "using %d workers instead of %d, because the rank has no more lanes"
            logger.info(message, used, asked)
        if not self._has_counted_cores:
            self._has_counted_cores = True
            ranks_per_node = self.member.world.ranks_per_node
            warning = explain_few_cores(used, ranks_per_node, *count_cores(), asked=asked)
            if warning is not None:
                logger.warning("%s", warning)

    def _iterate(self) -> Iteration:
        self.stop("another iteration was started")
        self._start_log.begin_iteration()
        plan, exchange = self._connect()
        run, member = self.now
        plan = foresee(run, plan, exchange)
        known = find_known(run, plan, exchange)
        self._warn_of_drift(plan)
        check_alone(run, member, exchange, known)
        iteration = Iteration(
            plan,
            exchange,
            run.log,
            self._start_log,
            has_processes=member.environment.has_worker_processes(member.delivery),
            known=known,
        )
        # a weak reference, so that the workers of an abandoned iteration stop. Between passes,
        # `_kept` keeps the iteration alive
        self._iteration = weakref.ref(iteration)
        return iteration

    def _connect(self) -> tuple[WorkerPlan, Exchange]:
        """Create the plan, and compare it with those of the other ranks."""
        run, member = self.now
        plan = self.worker_plan()
        exchange = member.connect()
        facts = list_facts(plan.inputs, plan.delivery, plan.share.world, run.position)
        if exchange.compare(facts):
            exchange.join(plan.share.world)
            return plan, exchange
        logger.info("some ranks found no token lengths, so the run uses none until it is resumed")
        self.now = run.without_lengths(), member
        return self._connect()

    def _warn_of_drift(self, plan: WorkerPlan) -> None:
        """Warn once if, according to the lengths, `cache_limit` is too small for later rows."""
        lengths = self.run.lengths
        if lengths is None or not self.member.is_first or self._has_measured:
            return
        self._has_measured = True
        warning = explain_later_working_set(lengths, plan.delivery, plan.share, plan.position)
        if warning is not None:
            logger.warning("%s", warning)


def _no_iteration() -> None:
    """Return None, as a dead weak reference to an iteration does."""


def _explain_unknown(run: CurrentRun, delivery: DeliveryConfig) -> str:
    """Say what is missing for the number of batches, and how to get it."""
    corpus = run.recipe.corpus
    urls = [str(dataset.location) for dataset in corpus.datasets]
    count = f"run: cloudload count {urls[0]}" + (", and so on" if len(urls) > 1 else "")
    if delivery.stop_every is not None:
        return f"an epoch has an unknown number of batches without token lengths. To count, {count}"
    if not run.recipe.has_tails:
        return f"the run has no end. Add epochs=1, and {count}"
    return f"there are no token lengths. To count, {count}"
