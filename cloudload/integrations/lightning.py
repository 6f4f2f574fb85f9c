"""Lightning: a data module that saves the loader with Lightning's checkpoints.

    trainer = Trainer(..., use_distributed_sampler=False, callbacks=[CloudloadMonitor(loader)])
    trainer.fit(model, datamodule=CloudloadDataModule(loader), ckpt_path="last")

Where no length is known Lightning reads one batch ahead, so the module counts what is trained on: the state to save is that of
the last such batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
except ImportError:  # its other package
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

from cloudload.batch import Batch
from cloudload.from_start import FromStart
from cloudload.loader import CloudLoader


class CloudloadDataModule(LightningDataModule):
    """Batches of a loader, and of another for validation, which has `epochs=1` or `stop_every`."""

    def __init__(self, loader: CloudLoader, eval_loader: CloudLoader | None = None) -> None:
        super().__init__()
        self._loader, self._num_ahead = loader, 0
        if eval_loader is not None:
            # Lightning validates where there is such a method
            self.val_dataloader = lambda: FromStart(eval_loader)

    def train_dataloader(self) -> _Batches:
        return _Batches(self._loader, self._count_fetched)

    def _count_fetched(self) -> None:
        self._num_ahead += 1

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Lightning calls this with a batch that is about to be trained on."""
        if self.trainer is not None and self.trainer.training:
            self._num_ahead -= 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict(lag=self._num_ahead)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)
        self._num_ahead = 0


class CloudloadMonitor(Callback):
    """Logs `loader.stats()`, of what Lightning has fetched, as `cloudload/…`: as often as it logs, and at the end of epochs."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        numbers = {f"cloudload/{name}": value for name, value in self._loader.stats().as_dict().items()}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)


class _Batches:
    """A loader that Lightning may ask for batches only, not for its state."""

    def __init__(self, loader: CloudLoader, count_fetched: Callable[[], None]) -> None:
        self._loader, self._count_fetched = loader, count_fetched

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self._count_fetched()
            yield batch

    def __len__(self) -> int:
        return len(self._loader)
