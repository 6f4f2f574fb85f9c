"""Pretrain a small Llama 3 with torchtitan's trainer.

Stop at any time, and resume on more or fewer ranks from torchtitan's own checkpoints. Start a run
on 2 ranks, and then continue it on 4:

    torchrun --nproc-per-node 2 examples/train_torchtitan.py s3://bucket/corpus --steps 300
    torchrun --nproc-per-node 4 examples/train_torchtitan.py s3://bucket/corpus --steps 600 --resume
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from tiny_gpt import parse_arguments
from torch.distributed.fsdp import FSDPModule

if not torch.cuda.is_available():
    # torchtitan requires an accelerator, so replace its queries about the device with answers for
    # the CPU
    torch._utils._get_available_device_type = lambda: "cpu"
    memory = {
        "get_device_properties": SimpleNamespace(total_memory=1),
        "memory_stats": {},
        "reset_peak_memory_stats": None,
    }
    for name, answer in {
        "current_device": 0,
        "get_device_name": "CPU",
        "empty_cache": None,
        **memory,
    }.items():
        setattr(torch.cpu, name, lambda *_, answer=answer: answer)
if not hasattr(dist, "set_timeout"):
    # torchtitan 0.3 targets torch nightlies; in torch 2.13, this function has a different name
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout

from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from cloudload.integrations.torchtitan import CloudloadDataLoader, CloudloadMetrics

HAS_GPU = torch.cuda.is_available()


def small_llama(vocab_size: int, depth: int) -> ModelSpec:
    """Return torchtitan's debug model, with this vocabulary and at most `depth` layers."""
    spec = model_registry("debugmodel")
    model = spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = vocab_size
    model.layers = model.layers[:depth]
    for layer in [] if HAS_GPU else model.layers:
        # flex attention has no backward pass on CPUs; with SDPA, documents attend to one another
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def main() -> None:
    args = parse_arguments(__doc__)
    if not args.resume and (args.out / "checkpoint").exists():
        raise SystemExit(
            f"{args.out} contains checkpoints, from which torchtitan would resume. Add --resume to "
            "continue that run, or set --out to a different folder"
        )
    init_logger()
    vocab_size = HuggingFaceTokenizer(tokenizer_path=args.tokenizer).get_vocab_size()
    options = {
        "seed": args.seed,
        "num_workers": args.workers,
        "local": args.cache,
        "stop_every": args.epoch_batches,
    }
    config = Trainer.Config(
        model_spec=small_llama(vocab_size, args.depth),
        hf_assets_path=args.tokenizer,
        dump_folder=str(args.out),
        dataloader=CloudloadDataLoader.Config(data=args.data, options=options),
        metrics=CloudloadMetrics.Config(enable_tensorboard=True),
        loss=CrossEntropyLoss.Config(global_vocab_size=vocab_size),
        optimizer=default_adamw(lr=args.lr),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=args.global_batch // args.accumulate // int(os.environ["WORLD_SIZE"]),
            global_batch_size=args.global_batch,
            seq_len=args.seq_len,
            steps=args.steps,
            mixed_precision_param="bfloat16" if HAS_GPU else "float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(
            enable=True, interval=args.save_every, last_save_model_only=False
        ),
        activation_checkpoint=None,
        debug=DebugConfig(seed=args.seed),
    )
    trainer = config.build()
    trainer.metrics_processor.watch(trainer.dataloader)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(not HAS_GPU)  # gloo cannot average
    try:
        trainer.train()
    finally:
        trainer.dataloader.close()
        trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
