"""Train for a few steps of `global_batch_size` rows in one framework, and write the weights.

    torchrun --nproc-per-node 3 -m tests.frameworks.global_batch_run torch DATA FOLDER

Each function has the lines of `docs/guides/global-batch.md` for its framework. The optimizer is
plain SGD, so the weights show whether each step's gradient is right.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from cloudload import CloudLoader
from testkit.loaders import make_loader

STEPS, GLOBAL_BATCH, MICRO_BATCH, RATE = 4, 10, 2, 0.5


class Model(torch.nn.Module):
    """A small float64 model that returns the sum of its losses.

    The HF Trainer passes the number of trained tokens of all ranks, by which it divides the sum.
    """

    accepts_loss_kwargs = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(257, 8, dtype=torch.float64)
        self.out = torch.nn.Linear(8, 257, dtype=torch.float64)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        logits = self.out(self.embed(input_ids[:, :-1]).cumsum(1))
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        return {"loss": total if num_items_in_batch is None else total / num_items_in_batch}


def scale_gradients(model: torch.nn.Module, factor: float, num_tokens: int) -> None:
    """Multiply the gradients by `factor`, and divide them by the trained tokens of all ranks."""
    count = torch.tensor(num_tokens)
    dist.all_reduce(count)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad *= factor / int(count)


def train_torch(loader: CloudLoader, _: str) -> torch.nn.Module:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    num_tokens = 0
    for number, batch in enumerate(loader.take(STEPS * loader.micro_batches), 1):
        model(**batch)["loss"].backward()  # the sum of the losses
        num_tokens += batch.num_trained_tokens
        if number % loader.micro_batches == 0:
            # DDP has averaged the gradients over the ranks
            scale_gradients(model, loader.world_size, num_tokens)
            optimizer.step()
            optimizer.zero_grad()
            num_tokens = 0
    own: torch.nn.Module = model.module
    return own


def train_accelerate(loader: CloudLoader, _: str) -> torch.nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=loader.micro_batches)
    own = Model()
    model, optimizer = accelerator.prepare(own, torch.optim.SGD(own.parameters(), lr=RATE))
    num_tokens = 0
    for batch in loader.take(STEPS * loader.micro_batches):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            num_tokens += batch.num_trained_tokens
            if accelerator.sync_gradients:
                # accelerate has divided the losses by the number of micro-batches
                scale_gradients(model, loader.world_size * loader.micro_batches, num_tokens)
                num_tokens = 0
            optimizer.step()
            optimizer.zero_grad()
    return own


def train_lightning(loader: CloudLoader, folder: str) -> torch.nn.Module:
    from lightning.pytorch import LightningModule, Trainer

    from cloudload.integrations.lightning import CloudloadDataModule

    class Module(LightningModule):
        num_tokens = 0

        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.num_tokens += batch.num_trained_tokens
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            # Lightning has divided the losses by the number of micro-batches
            scale_gradients(self, loader.world_size * loader.micro_batches, self.num_tokens)
            self.num_tokens = 0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=loader.world_size,
        max_steps=STEPS,
        accumulate_grad_batches=loader.micro_batches,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=CloudloadDataModule(loader))
    return module.model


def train_transformers(loader: CloudLoader, folder: str) -> torch.nn.Module:
    from transformers import TrainingArguments

    from cloudload.integrations.transformers import CloudloadTrainer

    args = TrainingArguments(
        folder,
        per_device_train_batch_size=loader.batch_size,
        gradient_accumulation_steps=loader.micro_batches,
        average_tokens_across_devices=True,
        max_steps=STEPS,
        max_grad_norm=0.0,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    model = Model()
    CloudloadTrainer(model, args, loader=loader).train()
    return model


def train_composer(loader: CloudLoader, _: str) -> torch.nn.Module:
    from composer import Trainer
    from composer.models import ComposerModel

    from cloudload.integrations.composer import data_spec

    class Composed(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def forward(self, batch: Any) -> dict[str, torch.Tensor]:
            outputs: dict[str, torch.Tensor] = self.model(batch["input_ids"], batch["labels"])
            return outputs

        def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
            # Composer weights the mean loss of each microbatch by its trained tokens
            trained = (batch["labels"][:, 1:] != -100).sum().clamp(min=1)
            mean: torch.Tensor = outputs["loss"] / trained
            return mean

    model = Composed()
    Trainer(
        model=model,
        train_dataloader=data_spec(loader),
        max_duration=f"{STEPS}ba",
        optimizers=torch.optim.SGD(model.parameters(), lr=RATE),
        device="cpu",
        device_train_microbatch_size=MICRO_BATCH,
        accumulate_train_batch_on_tokens=True,
        progress_bar=False,
        save_folder=None,
    ).fit()
    return model.model


FRAMEWORKS = {
    "torch": train_torch,
    "accelerate": train_accelerate,
    "Lightning": train_lightning,
    "HF Trainer": train_transformers,
    "Composer": train_composer,
}


def main() -> None:
    framework, data, folder = sys.argv[1:]
    micro = None if framework == "Composer" else MICRO_BATCH
    loader = make_loader(
        data,
        batch_size=None,
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=micro,
        mask_edges=True,
        num_lanes=None,
        local=f"{folder}/cache",
    )
    with loader:
        model = FRAMEWORKS[framework](loader, folder)
    rank = int(os.environ.get("RANK", "0"))
    weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    torch.save(weights, f"{folder}/{rank}.pt")
    os._exit(0)  # some frameworks fail when they clean up on CPUs


if __name__ == "__main__":
    main()
