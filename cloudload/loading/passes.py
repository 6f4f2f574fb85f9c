"""Passes over a loader: each starts at the loader's position, and `stop_every` may end it.

    stop_every=3    first pass: batches 1 2 3 · next: 4 5 6
                    resumed after batch 4: 5 6 · next: 7 8 9

When `stop_every` ends a pass, its workers keep running and read ahead for the next pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from cloudload.config import DeliveryConfig
from cloudload.loading.batch import Batch
from cloudload.loading.delivery.iteration import Iteration
from cloudload.loading.delivery.run_log import Progress, RunLog
from cloudload.order import World
from cloudload.run import Position, Recipe
from cloudload.stats import READ
from cloudload.system import NEVER, activity


def count_passes(position: Position, recipe: Recipe, delivery: DeliveryConfig, world: World) -> int:
    """Return the number of passes completed at a position, or 0 without `stop_every`.

    With stop_every="epoch", it is computed from the number of documents read. Otherwise, it is
    computed from the number of rows delivered and the current size of a pass in rows, so it is also
    defined if earlier batches had a different size.
    """
    every = delivery.stop_every
    if every is None:
        return 0
    if isinstance(every, int):
        return position.rows // count_rows_per_pass(delivery, world)
    [component] = recipe.components
    before = position.origin.count_documents(component.lanes)
    num_read = before + int(position.counts[:, READ].sum())
    # exclude the pass over the last epoch, because the run ends it, not `stop_every`
    return min(num_read // component.lanes.num_positions, (recipe.config.epochs or NEVER) - 1)


def count_rows_per_pass(delivery: DeliveryConfig, world: World) -> int:
    """Return the number of rows in a pass, or 0 if `stop_every` is not a number of batches."""
    every = delivery.stop_every
    return every * delivery.global_batch(world.size) if isinstance(every, int) else 0


WORKING = "working in the training process"
"""The activity reported for a slow batch if the training process waits for nothing specific."""


class Source(Protocol):
    """The interface through which a pass gets its batches. `loading.reader` implements it."""

    def begin_call(self, name: str) -> AbstractContextManager[None]:
        """Begin a call. Raises `WorkerError` if another call that moves the loader is running."""
        ...

    def start_iteration(self) -> Iteration:
        """Return the previous pass's iteration if it can continue, otherwise a new one."""
        ...

    def keep_iteration(self, iteration: Iteration) -> None:
        """Keep an iteration, with its workers, for the next pass."""
        ...

    def count_passes(self) -> int:
        """Return the number of passes completed."""
        ...

    def count_rows_per_pass(self) -> int:
        """Return the number of rows in a pass, or 0 if `stop_every` is not a number of batches."""
        ...

    @property
    def log(self) -> RunLog:
        """The log of the current run."""
        ...

    def take_back(self, log: RunLog, before: Progress, error: str) -> None:
        """Return `log` to an earlier progress. If it had recorded batches, end the iteration."""
        ...

    def make_wait(self) -> activity.Wait:
        """Return a `Wait` that reports a batch that does not arrive."""
        ...


class Pass(Iterator[Batch]):
    """One pass over a loader. The workers start when the first batch is requested.

    `has_stop` is False for a pass that `stop_every` does not end. If there is a `reason`,
    requesting a batch raises `ValueError(reason)`.
    """

    def __init__(self, source: Source, *, has_stop: bool = True, reason: str | None = None) -> None:
        self._source, self._has_stop, self._reason = source, has_stop, reason
        self._iteration: Iteration | None = None
        self._stop, self._rows_per_pass, self._is_over = 0, 0, False
        self._wait = source.make_wait()

    def __next__(self) -> Batch:
        if self._reason is not None:
            raise ValueError(self._reason)
        if self._is_over:
            raise StopIteration
        with self._source.begin_call("next"):
            return self._take_or_undo()

    def _take_or_undo(self) -> Batch:
        log = self._source.log
        before = log.progress
        try:
            with self._wait:
                return self._take()
        except StopIteration:
            raise
        except BaseException as error:
            # whatever failed after a batch was recorded, the caller does not get this batch
            self._source.take_back(log, before, repr(error))
            self._is_over = False
            raise

    def _take(self) -> Batch:
        if self._iteration is None or self._iteration.is_replaced:
            rows_per_pass = self._source.count_rows_per_pass()
            if self._iteration is None or rows_per_pass != self._rows_per_pass:
                self._stop = self._source.count_passes() + 1
                self._rows_per_pass = rows_per_pass
        if self._iteration is not None and self._is_at_stop():
            # `skip` or `set_world` moved past the end of the pass
            self._end(self._iteration)
            raise StopIteration
        if self._iteration is None or self._iteration.is_replaced:
            self._iteration = self._source.start_iteration()
        batch = next(self._iteration)
        if self._is_at_stop():
            # end now, because a caller that counts batches up to len() never requests another one
            self._end(self._iteration)
        return batch

    def _is_at_stop(self) -> bool:
        return self._has_stop and self._source.count_passes() >= self._stop

    def _end(self, iteration: Iteration) -> None:
        self._is_over, self._iteration = True, None
        self._source.keep_iteration(iteration)


# ---------------------------------------------------------------- frameworks that need an adapter

# without an adapter, Composer does not save the loader's state, and skips batches itself on resume;
# Lightning prefetches a batch if the loader has no length, so its saved state is one batch ahead of
# training, and in epoch-based training it ignores a state saved at the end of an epoch
_LIGHTNING = (
    "datamodule=CloudloadDataModule(loader), from cloudload.integrations.lightning, to Lightning. "
    "For evaluation, pass cloudload.FromStart(loader)"
)
_ADAPTERS = {
    "composer.trainer.trainer": (
        "data_spec(loader) or eval_spec(loader), from cloudload.integrations.composer, to Composer"
    ),
    "lightning.pytorch.utilities.combined_loader": _LIGHTNING,
    "pytorch_lightning.utilities.combined_loader": _LIGHTNING,
}


def reason_to_refuse_caller() -> str | None:
    """Return an error message if a framework iterates over the loader without its adapter.

    Call this directly in `__iter__`, because it inspects the caller of the function that calls it.
    Returns None for every caller that is not in `_ADAPTERS`.
    """
    adapter = _ADAPTERS.get(sys._getframe(2).f_globals.get("__name__", ""))
    return adapter and (
        f"without an adapter, a resumed run may lose or repeat batches. Pass {adapter}"
    )
