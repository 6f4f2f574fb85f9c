"""What `iter(loader)` gives: a pass over the batches, from where the loader stands to where it
stops.

    stop_every=3        first pass: batches 1 2 3 · next: 4 5 6 · resumed after batch 4: 5 6 · next: 7 8 9

The workers that read ahead go on from one pass to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from cloudload.batch import Batch
from cloudload.delivery.iteration import Batches


class Pass(Iterator[Batch]):
    """One pass; nothing is begun before its first batch is asked for."""

    def __init__(
        self,
        begin: Callable[[], Batches],
        num_complete: Callable[[], int],
        keep: Callable[[Batches], None],
    ) -> None:
        self._begin, self._num_complete, self._keep = begin, num_complete, keep
        self._batches: Batches | None = None
        self._stop, self._is_over = 0, False

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if self._batches is None:
            self._batches, self._stop = self._begin(), self._num_complete() + 1
        elif self._num_complete() >= self._stop:
            # past its stop by a skip
            self._end(self._batches)
            raise StopIteration
        batch = next(self._batches)
        if self._num_complete() >= self._stop:
            # now, for who knows how many there are does not ask for one more
            self._end(self._batches)
        return batch

    def _end(self, batches: Batches) -> None:
        self._is_over, self._batches = True, None
        self._keep(batches)


# ---------------------------------------------------------------- frameworks that need an adapter

# Composer would not save the state, and skips batches by counting its own epochs; Lightning saves
# it one batch too far, and does not load it at the end of an epoch.
_INSTEAD = {
    "composer.trainer.trainer": "Composer data_spec(loader), or eval_spec(loader), of "
    "cloudload.integrations.composer",
    "lightning.pytorch.utilities.combined_loader": (
        "Lightning datamodule=CloudloadDataModule(loader), of cloudload.integrations.lightning; "
        "and for evaluation "
        "cloudload.FromStart(loader)"
    ),
}
_INSTEAD["pytorch_lightning.utilities.combined_loader"] = _INSTEAD[
    "lightning.pytorch.utilities.combined_loader"
]


def reason_to_refuse_caller() -> str | None:
    """Why what called the caller of this may not iterate, and what it is to be given; None for all
    but a few modules."""
    instead = _INSTEAD.get(sys._getframe(2).f_globals.get("__name__", ""))
    return instead and f"read like this, a resumed run would lose or repeat batches. Give {instead}"
