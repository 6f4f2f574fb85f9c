"""Passes over a loader: each starts at the loader's position, and `stop_every` may end it.

    stop_every=3    first pass: batches 1 2 3 · next: 4 5 6
                    resumed after batch 4: 5 6 · next: 7 8 9

When `stop_every` ends a pass, its workers keep running and read ahead for the next pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from cloudload.loading.batch import Batch
from cloudload.loading.delivery.iteration import Iteration
from cloudload.loading.reader import Reader


class Pass(Iterator[Batch]):
    """One pass over a loader. The workers start when the first batch is requested.

    `has_stop` is False for a pass that `stop_every` does not end. If there is a `reason`,
    requesting a batch raises `ValueError(reason)`.
    """

    def __init__(self, reader: Reader, *, has_stop: bool = True, reason: str | None = None) -> None:
        self._reader, self._has_stop, self._reason = reader, has_stop, reason
        self._iteration: Iteration | None = None
        self._stop, self._rows_per_pass, self._is_over = 0, 0, False
        self._wait = reader.make_wait()

    def __next__(self) -> Batch:
        if self._reason is not None:
            raise ValueError(self._reason)
        if self._is_over:
            raise StopIteration
        with self._reader.begin_call("next"):
            return self._take_or_undo()

    def _take_or_undo(self) -> Batch:
        log = self._reader.run.log
        before = log.progress
        try:
            with self._wait:
                return self._take()
        except StopIteration:
            raise
        except BaseException as error:
            # whatever failed after a batch was recorded, the caller does not get this batch
            self._reader.take_back(log, before, repr(error))
            self._is_over = False
            raise

    def _take(self) -> Batch:
        if self._iteration is None or self._iteration.is_replaced:
            rows_per_pass = self._reader.count_rows_per_pass()
            if self._iteration is None or rows_per_pass != self._rows_per_pass:
                self._stop = self._reader.count_passes() + 1
                self._rows_per_pass = rows_per_pass
        if self._iteration is not None and self._is_at_stop():
            # `skip` or `set_world` moved past the end of the pass
            self._end(self._iteration)
            raise StopIteration
        if self._iteration is None or self._iteration.is_replaced:
            self._iteration = self._reader.start_iteration()
        batch = next(self._iteration)
        if self._is_at_stop():
            # end now, because a caller that counts batches up to len() never requests another one
            self._end(self._iteration)
        return batch

    def _is_at_stop(self) -> bool:
        return self._has_stop and self._reader.count_passes() >= self._stop

    def _end(self, iteration: Iteration) -> None:
        self._is_over, self._iteration = True, None
        self._reader.keep_iteration(iteration)


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
