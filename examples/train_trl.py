"""Train with TRL's SFTTrainer. Stop at any time, and resume on more or fewer ranks.

Start a run on 2 ranks, and then continue it on 4 (transformers 4 needs GPUs for several ranks):

    torchrun --nproc-per-node 2 examples/train_trl.py s3://bucket/corpus --steps 300
    torchrun --nproc-per-node 4 examples/train_trl.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

import os

import torch
from datasets import Dataset
from tiny_gpt import parse_arguments
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from cloudload import CloudLoader
from cloudload.integrations.transformers import CloudloadTrainer


class LoaderTrainer(CloudloadTrainer, SFTTrainer):
    """An SFTTrainer whose batches come from a loader."""


def main() -> None:
    args = parse_arguments(__doc__)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    batch_size = args.global_batch // args.accumulate // world_size
    training_args = SFTConfig(
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
        bf16=torch.cuda.is_available(),
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
        fields=["flash_attention"],  # keep documents apart, with any attention
        mask_edges=True,
    )
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=loader.vocab_size,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.depth,
        num_attention_heads=args.width // 32,
    )
    # SFTTrainer inspects a dataset, but the loader's batches are used instead
    unused = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
    with loader:
        trainer = LoaderTrainer(
            LlamaForCausalLM(config),
            training_args,
            loader=loader,
            train_dataset=unused,
            processing_class=AutoTokenizer.from_pretrained(args.tokenizer),
        )
        trainer.train(
            resume_from_checkpoint=get_last_checkpoint(str(args.out)) if args.resume else None
        )


if __name__ == "__main__":
    main()
