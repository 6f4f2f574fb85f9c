"""Pretrain in plain torch, with DDP or FSDP2, and checkpoints of torch.distributed.checkpoint.

Stop at any time, and resume on more or fewer ranks. Start a run on 2 ranks, and then continue it on
4:

    torchrun --nproc-per-node 2 examples/train_torch.py s3://bucket/corpus --steps 300
    torchrun --nproc-per-node 4 examples/train_torch.py s3://bucket/corpus --steps 600 --resume

To use FSDP2 instead of DDP, set FSDP=1 in the environment.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny_gpt import GPT, parse_arguments
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from cloudload import CloudLoader
from cloudload.integrations.dcp import LoaderState
from cloudload.losses import LossLog


class TrainState:
    """The model and the optimizer as DCP saves them, sharded (FSDP2) or not (DDP)."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def main() -> None:
    args = parse_arguments(__doc__)
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo")
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch // args.accumulate // dist.get_world_size(),
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        stop_every=args.epoch_batches,
        pin_memory=device.type == "cuda",
    )
    gpt = GPT(loader.vocab_size, args).to(device)
    model: nn.Module = gpt
    if os.environ.get("FSDP"):
        for block in gpt.blocks:
            fully_shard(block)
        fully_shard(gpt)
    else:
        model = nn.parallel.DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    states = {"train": TrainState(model, optimizer), "loader": LoaderState(loader)}
    step = 0
    if args.resume:
        # DCP writes .metadata last, so a folder that contains the file is complete
        last = max(args.out.glob("step-*/.metadata")).parent
        dcp.load(states, checkpoint_id=last)
        step = int(last.name.removeprefix("step-"))
    with loader, LossLog(loader, args.losses) as losses:
        batches = every_pass(loader)
        while step < args.steps:
            if step % args.save_every == 0:
                losses.flush()
                dcp.save(states, checkpoint_id=args.out / f"step-{step:07}")
            for _ in range(args.accumulate):
                batch = next(batches)
                on_device = batch.to(device, non_blocking=True)
                outputs = model(**on_device)
                losses.add(on_device, outputs["token_losses"])
                loss = outputs["loss"]
                (loss / args.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step}  loss {loss:.3f}  {loader.stats().tokens:,} tokens", flush=True)
            if step % 10 == 0:
                means = losses.take_means()  # on every rank, because the means are over all ranks
                if dist.get_rank() == 0:
                    print({name: f"{each.mean:.3f}" for name, each in means.items()}, flush=True)
    dcp.save(states, checkpoint_id=args.out / f"step-{step:07}")
    dist.destroy_process_group()


def every_pass(loader: CloudLoader) -> Any:
    """Yield the batches of all passes. There is more than one pass only with `stop_every`."""
    while True:
        yield from loader


if __name__ == "__main__":
    main()
