"""Pretrain with Composer. Stop at any time, and resume on more or fewer ranks.

The loader's state is part of Composer's own checkpoints. Start a run on 2 ranks, and then continue
it on 4:

    composer -n 2 examples/train_composer.py s3://bucket/corpus --steps 300
    composer -n 4 examples/train_composer.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

from typing import Any

import torch
from composer import ComposerModel, Trainer
from composer.utils import dist
from tiny_gpt import GPT, parse_arguments
from torch import Tensor, nn

from cloudload import CloudLoader
from cloudload.integrations.composer import CloudloadLosses, CloudloadMonitor, data_spec
from cloudload.losses import LossLog


class ComposerGPT(ComposerModel):
    """A wrapper that gives the GPT the interface of a Composer model."""

    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(self.gpt(batch["input_ids"], batch["labels"]))

    def loss(
        self, outputs: dict[str, Tensor], batch: dict[str, Tensor], *_: Any, **__: Any
    ) -> Tensor:
        return outputs["loss"]


def main() -> None:
    args = parse_arguments(__doc__)
    dist.initialize_dist("gpu" if torch.cuda.is_available() else "cpu")
    batch_size = args.global_batch // dist.get_world_size()
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=batch_size,
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        stop_every=args.epoch_batches,
    )
    model = ComposerGPT(GPT(loader.vocab_size, args))
    trainer = Trainer(
        run_name="gpt",
        model=model,
        train_dataloader=data_spec(loader),
        optimizers=torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95)),
        max_duration=f"{args.steps}ba",
        device_train_microbatch_size=batch_size // args.accumulate,
        save_folder=str(args.out),
        save_interval=f"{args.save_every}ba",
        autoresume=args.resume,
        callbacks=[CloudloadMonitor(loader), CloudloadLosses(LossLog(loader, args.losses))],
        progress_bar=False,
        log_to_console=True,
        console_log_interval="10ba",
    )
    with loader:
        trainer.fit()
    if dist.get_global_rank() == 0:
        timestamp = trainer.state.timestamp
        print(
            f"trained {timestamp.batch}, {timestamp.epoch}, {timestamp.sample}, {timestamp.token}",
            flush=True,
        )
    trainer.close()


if __name__ == "__main__":
    main()
