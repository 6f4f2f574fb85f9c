"""Train on 95% text and 5% conversations, in plain torch. Only the assistant's tokens are trained.

Stop at any time, and resume on any number of ranks. Start a run on 2 ranks, and continue it on 3:

    torchrun --nproc-per-node 2 examples/train_sft.py sft-data --steps 40
    torchrun --nproc-per-node 3 examples/train_sft.py sft-data --steps 80 --resume

If the folder `sft-data` does not exist, the example writes it: this documentation as text, and
2,000 conversations about numbers, rendered with the chat template in `examples/tokenizer`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import GPT, parse_arguments
from torch import Tensor, nn

from cloudload import Chat, CloudLoader, Stream, convert_to_mds, count_tokens

CHAT_SHARE = 0.05
DOCUMENTATION = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    args = parse_arguments(__doc__)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # longer conversations are dropped; this number does not change if `seq_len` does
    chat = Chat(max_tokens=args.seq_len)
    if rank == 0 and not Path(args.data).exists():
        write_data(Path(args.data), args.tokenizer, chat)
    dist.barrier()
    loader = CloudLoader(
        [
            Stream(f"{args.data}/text", name="text", proportion=1 - CHAT_SHARE),
            Stream(f"{args.data}/chat", name="chat", proportion=CHAT_SHARE, chat=chat),
        ],
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        packing="best_fit",
        global_batch_size=args.global_batch,  # the same steps on any number of ranks
        micro_batch_size=-(-args.global_batch // args.accumulate // ranks),
        mask_edges=True,  # no document predicts the first token of the next one
        seed=args.seed,
        num_workers=args.workers,
        local=args.cache,
    )
    model = nn.parallel.DistributedDataParallel(GPT(loader.vocab_size, args).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    checkpoint, step = args.out / "checkpoint.pt", 0
    if args.resume:
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    with loader:
        for loss in train(model, optimizer, loader, args.steps - step, device):
            step += 1
            if rank == 0:
                share = loader.stats().streams["chat"].share
                print(f"step {step}  loss {loss:.3f}  {share:.1%} of tokens are chat", flush=True)
            if rank == 0 and (step % args.save_every == 0 or step == args.steps):
                parts = {"model": model.module, "optimizer": optimizer, "loader": loader}
                states = {name: part.state_dict() for name, part in parts.items()}
                save({**states, "step": step}, checkpoint)
    dist.destroy_process_group()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: CloudLoader,
    steps: int,
    device: torch.device,
) -> Iterator[float]:
    """Take optimizer steps, and yield the loss of each: the mean over its trained tokens."""
    # the sums of a step: its loss, and its trained tokens
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for number, batch in enumerate(loader.take(steps * loader.micro_batches), 1):
        on_device = batch.to(device, non_blocking=True)
        loss: Any = sum_losses(model(**on_device)["logits"], on_device["labels"])
        loss.backward()
        total[0] += loss.detach()
        total[1] += batch.num_trained_tokens
        if number % loader.micro_batches:
            continue
        dist.all_reduce(total)
        for parameter in model.parameters():
            # DDP has averaged the gradients over the ranks
            if parameter.grad is not None:
                parameter.grad *= loader.world_size / total[1]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield (total[0] / total[1]).item()
        total.zero_()


def sum_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the losses of a batch's trained tokens; 0 if it has none."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )


def save(states: dict[str, Any], path: Path) -> None:
    """Write a checkpoint. A kill leaves the last one as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(states, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


# ---------------------------------------------------------------- data


def write_data(folder: Path, tokenizer: str, chat: Chat) -> None:
    """Write the text and the conversations as MDS, and count their tokens."""
    texts = [{"text": file.read_text()} for file in sorted(DOCUMENTATION.rglob("*.md"))]
    convert_to_mds(iter(texts), folder / "text", shard_bytes=100_000, progress=False)
    chats = ({"messages": each} for each in make_conversations(2_000))
    convert_to_mds(
        chats,
        folder / "chat",
        text_key=None,
        keep=["messages"],
        shard_bytes=100_000,
        progress=False,
    )
    # token lengths allow any number of ranks
    count_tokens(folder / "text", tokenizer=tokenizer, progress=False)
    count_tokens(folder / "chat", tokenizer=tokenizer, chat=chat, progress=False)


def make_conversations(number: int) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of one to three questions about numbers."""
    draw = random.Random(1)
    for _ in range(number):
        messages = [{"role": "system", "content": "Answer with a number."}]
        for _ in range(draw.randint(1, 3)):
            one, other = draw.randint(0, 9), draw.randint(0, 9)
            messages += [
                {"role": "user", "content": f"What is {one} + {other}?"},
                {"role": "assistant", "content": f"{one + other}"},
            ]
        yield messages


if __name__ == "__main__":
    main()
