"""Pretrain with Lightning. Stop at any time, and resume on more or fewer ranks.

Start a run on 2 ranks, and then continue it on 4:

    torchrun --nproc-per-node 2 examples/train_lightning.py s3://bucket/corpus --steps 300
    torchrun --nproc-per-node 4 examples/train_lightning.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tiny_gpt import GPT, parse_arguments
from torch import Tensor, nn

from cloudload import CloudLoader
from cloudload.integrations.lightning import CloudloadDataModule, CloudloadMonitor


class LightningGPT(LightningModule):
    """A wrapper that gives the GPT the interface of a Lightning module."""

    def __init__(self, gpt: nn.Module, lr: float) -> None:
        super().__init__()
        self.gpt, self.lr = gpt, lr

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.gpt(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.95))


def main() -> None:
    args = parse_arguments(__doc__)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch // args.accumulate // world_size,
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        stop_every=args.epoch_batches,
    )
    trainer = Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if world_size > 1 else "auto",
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulate,
        use_distributed_sampler=False,
        callbacks=[
            ModelCheckpoint(args.out, every_n_train_steps=args.save_every, save_last=True),
            CloudloadMonitor(loader),
        ],
        logger=CSVLogger(args.out),
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with loader:
        model = LightningGPT(GPT(loader.vocab_size, args), args.lr)
        trainer.fit(
            model, datamodule=CloudloadDataModule(loader), ckpt_path="last" if args.resume else None
        )


if __name__ == "__main__":
    main()
