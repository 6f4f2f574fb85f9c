"""Pretrain with Hugging Face accelerate. Stop at any time, and resume on more or fewer ranks.

Start a run on 2 ranks, and then continue it on 4:

    run="examples/train_accelerate.py s3://bucket/corpus"
    accelerate launch --num-processes 2 $run --steps 300
    accelerate launch --num-processes 4 $run --steps 600 --resume
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from tiny_gpt import GPT, parse_arguments
from torch import Tensor

from cloudload import CloudLoader


class Steps:
    """A counter of optimizer steps that accelerate saves in its checkpoints."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def main() -> None:
    args = parse_arguments(__doc__)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=args.accumulate
    )
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch // args.accumulate // accelerator.num_processes,
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        stop_every=args.epoch_batches,
    )
    gpt = GPT(loader.vocab_size, args)
    # do not pass the loader to prepare(), because it already shards the data by rank
    model, optimizer = accelerator.prepare(
        gpt, torch.optim.AdamW(gpt.parameters(), lr=args.lr, betas=(0.9, 0.95))
    )
    steps = Steps()
    accelerator.register_for_checkpointing(loader, steps)
    if args.resume:
        accelerator.load_state(str(max(path.parent for path in args.out.glob("step-*/complete"))))

    def save() -> None:
        folder = args.out / f"step-{steps.number:07}"
        accelerator.save_state(str(folder))
        if accelerator.is_main_process:
            (folder / "complete").touch()

    def train_on(batch: dict[str, Tensor]) -> None:
        with accelerator.accumulate(model):
            loss = model(**{name: tensor.to(accelerator.device) for name, tensor in batch.items()})[
                "loss"
            ]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps.number += 1
            accelerator.print(
                f"step {steps.number}  loss {loss:.3f}  {loader.stats().tokens:,} tokens",
                flush=True,
            )
            if steps.number % args.save_every == 0:
                save()

    with loader:
        if not steps.number:
            save()
        while steps.number < args.steps:
            for batch in loader:
                train_on(batch)
                if steps.number >= args.steps:
                    break
    accelerator.end_training()


if __name__ == "__main__":
    main()
