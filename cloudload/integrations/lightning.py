"""Lightning: a data module that saves the loader's state in Lightning's checkpoints.

    trainer = Trainer(..., use_distributed_sampler=False, callbacks=[CloudloadMonitor(loader)])
    trainer.fit(model, datamodule=CloudloadDataModule(loader), ckpt_path="last")

Lightning reads one batch ahead if the loader has no length, so the data module counts the batches
trained on, and saves the state after the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from cloudload.errors import StreamChangedError
from cloudload.integrations.frameworks import explain_missing
from cloudload.loading import Batch, CloudLoader, FromStart

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
except ImportError as error:
    try:  # Lightning's older package name
        from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    except ImportError:
        raise explain_missing(error, "lightning", "lightning") from error

logger = logging.getLogger("cloudload.integrations")


class CloudloadDataModule(LightningDataModule):
    """Trains on `loader`, and validates on `eval_loader`, which needs `epochs` or `stop_every`.

    Raises `StreamChangedError` if training resumes from a checkpoint without the loader's state,
    and `ValueError` if validation starts with an endless `eval_loader`.
    """

    def __init__(self, loader: CloudLoader, eval_loader: CloudLoader | None = None) -> None:
        super().__init__()
        self.loader = loader
        self._num_fetched, self._num_processed_before = 0, 0
        self._progress: Any = None
        self._is_loaded = False
        if eval_loader is not None:
            # Lightning validates only if this method exists
            self.val_dataloader = lambda: FromStart(eval_loader)

    def train_dataloader(self) -> _Batches:
        assert self.trainer is not None
        if self.trainer.ckpt_path and not self._is_loaded:
            raise StreamChangedError(
                f"{self.trainer.ckpt_path} has no {type(self).__qualname__} state. Load a "
                "checkpoint that was saved with this data module, or load only the weights and do "
                "not pass ckpt_path"
            )
        return _Batches(self)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict(lag=self._num_ahead())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)
        self._num_fetched, self._is_loaded = 0, True

    def begin_pass(self) -> None:
        """Rewind to the last batch trained on, because an earlier `fit` may have read ahead."""
        if num_ahead := self._num_ahead():
            self.loader.load_state_dict(self.loader.state_dict(lag=num_ahead))
        # Lightning increments `processed` before it saves, but not for a batch that failed
        self._progress = self.trainer.fit_loop.epoch_loop.batch_progress.total
        self._num_fetched, self._num_processed_before = 0, self._progress.processed

    def count_fetched(self) -> None:
        """Count a batch that Lightning has fetched."""
        self._num_fetched += 1

    def _num_ahead(self) -> int:
        """Number of batches that Lightning fetched in this pass but has not trained on."""
        return self._num_fetched and self._num_fetched - (
            self._progress.processed - self._num_processed_before
        )


class CloudloadMonitor(Callback):
    """Logs `loader.stats()` as `cloudload/…` every `log_every_n_steps` steps, and after each epoch.

    Logs up to ten values (`Stats.as_dict(brief=True)`), or all of them with `all_stats=True`. They
    may include a batch that Lightning has read ahead.
    """

    def __init__(self, loader: CloudLoader, *, all_stats: bool = False) -> None:
        self._loader, self._is_brief = loader, not all_stats

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        numbers = self._loader.stats().as_dict("cloudload/", brief=self._is_brief)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)


class _Batches:
    """The loader's batches for Lightning. Has no `state_dict`: the data module saves the state."""

    def __init__(self, module: CloudloadDataModule) -> None:
        self._module = module

    def __iter__(self) -> Iterator[Batch]:
        self._module.begin_pass()
        for batch in self._module.loader:
            self._module.count_fetched()
            yield batch
        if not self._module.loader.is_at_stop:
            # stop here, so that Lightning does not run empty epochs
            logger.info("the data ended after %d rows, so training stops", self._module.loader.rows)
            self._module.trainer.should_stop = True

    def __len__(self) -> int:
        return len(self._module.loader)
