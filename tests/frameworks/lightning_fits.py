"""Fits of a small model by Lightning. Import this in a test, because it imports Lightning, which
takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from cloudload import CloudLoader
from cloudload.integrations.lightning import CloudloadDataModule
from tests.frameworks.small import Model


class Module(LightningModule):
    """The small model with Lightning's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch)["loss"]
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.model(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(folder: Path, **options: Any) -> Trainer:
    """Make a trainer on the CPU that prints and logs nothing."""
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**defaults, "default_root_dir": str(folder), **options})


def fit(
    loader: CloudLoader,
    folder: Path,
    *,
    ckpt_path: Any = None,
    eval_loader: Any = None,
    save_every: int = 0,
    **options: Any,
) -> tuple[Any, Trainer]:
    """Train on a loader. Returns the model, which recorded its rows, and the trainer.

    Unless `save_every` is 0, saves "step=N.ckpt" in `folder` after every `save_every` steps.
    """
    if save_every:
        save = ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=save_every, save_top_k=-1
        )
        options["callbacks"] = [save]
    trainer, module = make_trainer(folder, **options), Module()
    trainer.fit(module, datamodule=CloudloadDataModule(loader, eval_loader), ckpt_path=ckpt_path)
    return module.model, trainer
