"""Lightning: a data module that saves the loader with Lightning's checkpoints.

    trainer = Trainer(..., use_distributed_sampler=False, callbacks=[CloudloadMonitor(loader)])
    trainer.fit(model, datamodule=CloudloadDataModule(loader), ckpt_path="last")

Where no length is known Lightning reads one batch ahead, so the module counts what is trained on:
the state to save is that of the last such batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
except ImportError:  # its other package
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

from cloudload.batch import Batch
from cloudload.errors import StreamChangedError
from cloudload.loader import CloudLoader, FromStart

logger = logging.getLogger(__name__)


class CloudloadDataModule(LightningDataModule):
    """Batches of a loader, and of another for validation, which has `epochs=1` or `stop_every`."""

    def __init__(self, loader: CloudLoader, eval_loader: CloudLoader | None = None) -> None:
        super().__init__()
        self.loader = loader
        self._num_fetched, self._num_processed_before = 0, 0
        self._progress: Any = None
        self._is_loaded = False
        if eval_loader is not None:
            # Lightning validates where there is such a method
            self.val_dataloader = lambda: FromStart(eval_loader)

    def train_dataloader(self) -> _Batches:
        assert self.trainer is not None
        if self.trainer.ckpt_path and not self._is_loaded:
            raise StreamChangedError(
                f"{self.trainer.ckpt_path} has no state of a {type(self).__qualname__}. Load a "
                "checkpoint that was saved with "
                "one, or take its weights alone"
            )
        return _Batches(self)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict(lag=self._num_ahead())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)
        self._num_fetched, self._is_loaded = 0, True

    def begin_pass(self) -> None:
        """Go back to where training is: a fit before may have left batches that it did not train
        on."""
        if num_ahead := self._num_ahead():
            self.loader.load_state_dict(self.loader.state_dict(lag=num_ahead))
        # Lightning raises it before it saves, and not for a batch that fails
        self._progress = self.trainer.fit_loop.epoch_loop.batch_progress.total
        self._num_fetched, self._num_processed_before = 0, self._progress.processed

    def count_fetched(self) -> None:
        """Lightning has taken a batch."""
        self._num_fetched += 1

    def _num_ahead(self) -> int:
        """Batches that Lightning has taken in this pass, and not trained on."""
        return self._num_fetched and self._num_fetched - (
            self._progress.processed - self._num_processed_before
        )


class CloudloadMonitor(Callback):
    """Logs `loader.stats()`, of what Lightning has fetched, as `cloudload/…`: as often as it logs,
    and at the end of epochs."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        numbers = self._loader.stats().as_dict("cloudload/")
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)


class _Batches:
    """A loader that Lightning may ask for batches only, not for its state."""

    def __init__(self, module: CloudloadDataModule) -> None:
        self._module = module

    def __iter__(self) -> Iterator[Batch]:
        self._module.begin_pass()
        for batch in self._module.loader:
            self._module.count_fetched()
            yield batch
        if not self._module.loader.is_at_stop:
            # otherwise empty epochs would follow
            logger.info(
                "the data has ended after %d rows, and so does training", self._module.loader.rows
            )
            self._module.trainer.should_stop = True

    def __len__(self) -> int:
        return len(self._module.loader)
