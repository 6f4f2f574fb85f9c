"""Train a small GPT in plain torch, for the demo. Each rank records the rows of every step."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cloudload import Batch, CloudLoader
from examples.tiny_gpt import GPT

ROOT = Path(__file__).resolve().parents[2]


def save_checkpoint(folder: Path, **content: Any) -> None:
    """Write `step-N.pt` atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / "checkpoint.tmp")
    os.replace(folder / "checkpoint.tmp", folder / f"step-{content['step']:07}.pt")


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Load the last checkpoint in a folder. Raises `SystemExit` if there is none."""
    if files := sorted(folder.glob("step-*.pt")):
        return dict(torch.load(files[-1], map_location="cpu", weights_only=True))
    raise SystemExit(
        f"{folder} contains no checkpoint. Change --checkpoints, or start without --resume"
    )


def describe_rows(batch: Batch) -> dict[int, str]:
    """Map each row's index in the run to a hash of the row's tokens."""
    hashes = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in batch["input_ids"]]
    return {
        batch.first_row + place * batch.row_step: row_hash for place, row_hash in enumerate(hashes)
    }


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train to step `args.steps`, from the start or, with `--resume`, from the last checkpoint."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    loader = CloudLoader(
        args.data,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch // num_ranks,
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
        pin_memory=device.type == "cuda",
    )
    model = GPT(loader.vocab_size, args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    step = 0
    if args.resume:
        checkpoint = load_checkpoint(args.checkpoints)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        step = checkpoint["step"]
    parallel = nn.parallel.DistributedDataParallel(
        model, [device.index] if device.type == "cuda" else None
    )
    with loader:
        batches = iter(loader)
        while step < args.steps:
            started = time.perf_counter()
            batch = next(batches)
            wait_s = time.perf_counter() - started
            step += 1
            optimizer.param_groups[0]["lr"] = args.lr * min(1.0, step / args.warmup)
            loss = parallel(
                **{name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            )["loss"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            mean_loss = loss.detach() / num_ranks
            dist.all_reduce(mean_loss)
            step_s = time.perf_counter() - started
            if rank == 0:
                print(
                    f"step {step}  loss {mean_loss:.3f}  {step_s:.3f} s, including a "
                    f"{wait_s:.3f} s wait for the batch",
                    flush=True,
                )
            if args.record:
                line = {
                    "step": step,
                    "loss": mean_loss.item(),
                    "step_s": step_s,
                    "wait_s": wait_s,
                    "rows": describe_rows(batch),
                }
                with (args.record / f"rank-{rank}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            if rank == 0 and (step % args.save_every == 0 or step == args.steps):
                states = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                save_checkpoint(args.checkpoints, step=step, **states)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="URL or folder of the MDS dataset")
    parser.add_argument(
        "--tokenizer",
        default=str(ROOT / "examples" / "tokenizer"),
        help="tokenizer name, folder, or tokenizer.json file (default: examples/tokenizer)",
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path("checkpoints"),
        help="folder for checkpoints, which are written every --save-every steps",
    )
    parser.add_argument("--cache", help="folder for cached shards")
    parser.add_argument(
        "--record",
        type=Path,
        help="existing folder, in which each rank records the rows of each step",
    )
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--lr", type=float, default=2e-3)
    numbers = {
        "steps": 300,
        "save-every": 50,
        "warmup": 20,
        "global-batch": 16,
        "seq-len": 256,
        "seed": 17,
        "workers": 1,
    }
    parser.add_argument(
        "--width",
        type=int,
        default=128,
        help="hidden size, a multiple of 32 (default: %(default)s)",
    )
    for name, default in {**numbers, "depth": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    args = parser.parse_args(namespace=argparse.Namespace(float64=False))
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if args.global_batch % dist.get_world_size():
            raise SystemExit(
                "--global-batch must be a multiple of the number of ranks, but is "
                f"{args.global_batch} with {dist.get_world_size()} ranks. Change --global-batch or "
                "the number of ranks"
            )
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
