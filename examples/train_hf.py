"""Pretrain with the Hugging Face Trainer. Stop at any time, and resume on more or fewer ranks.

Start a run on 2 ranks, and then continue it on 4:

    torchrun --nproc-per-node 2 examples/train_hf.py s3://bucket/corpus --steps 300
    torchrun --nproc-per-node 4 examples/train_hf.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

import os

import torch
from tiny_gpt import GPT, parse_arguments
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from cloudload import CloudLoader
from cloudload.integrations.transformers import CloudloadTrainer


def main() -> None:
    args = parse_arguments(__doc__)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    batch_size = args.global_batch // args.accumulate // world_size
    training_args = TrainingArguments(
        output_dir=str(args.out),
        per_device_train_batch_size=batch_size,
        max_steps=args.steps,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        save_steps=args.save_every,
        logging_steps=10,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
    )
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
    with loader:
        trainer = CloudloadTrainer(GPT(loader.vocab_size, args), training_args, loader=loader)
        trainer.train(
            resume_from_checkpoint=get_last_checkpoint(str(args.out)) if args.resume else None
        )


if __name__ == "__main__":
    main()
