"""A small GPT, and the command-line arguments that all examples share."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer block with causal attention and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, 32)).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        out: Tensor = x + self.feed_forward(self.norm_2(x))
        return out


class GPT(nn.Module):
    """A small GPT that takes a batch of the loader. Its embedding is also its output layer."""

    def __init__(self, vocab_size: int, args: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(args.seed)
        self.embed, self.position = (
            nn.Embedding(vocab_size, args.width),
            nn.Parameter(torch.zeros(args.seq_len, args.width)),
        )
        self.blocks, self.norm = (
            nn.Sequential(*(Block(args.width) for _ in range(args.depth))),
            nn.LayerNorm(args.width),
        )
        nn.init.normal_(self.embed.weight, std=0.02)
        self.to(torch.float64 if args.float64 else torch.float32)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids) + self.position[: input_ids.shape[1]]
        logits = nn.functional.linear(self.norm(self.blocks(x)), self.embed.weight)
        targets = labels[:, 1:]
        token_losses = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)
        return {
            "loss": token_losses.sum() / (targets != -100).sum(),
            "token_losses": token_losses.detach(),
            "logits": logits,
        }


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Parse the command line of an example."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="URL or folder of the MDS dataset")
    parser.add_argument(
        "--tokenizer",
        default=str(Path(__file__).parent / "tokenizer"),
        help="tokenizer name, folder, or tokenizer.json file (default: examples/tokenizer)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("checkpoints"),
        help="folder for checkpoints (default: %(default)s)",
    )
    parser.add_argument("--cache", help="folder for cached shards")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument(
        "--steps", type=int, default=300, help="total optimizer steps (default: %(default)s)"
    )
    parser.add_argument(
        "--save-every",
        type=int,
        default=50,
        help="optimizer steps between checkpoints (default: %(default)s)",
    )
    parser.add_argument(
        "--global-batch",
        type=int,
        default=16,
        help="rows per optimizer step, over all ranks (default: %(default)s)",
    )
    parser.add_argument(
        "--accumulate",
        type=int,
        default=1,
        help="batches per optimizer step on each rank (default: %(default)s)",
    )
    parser.add_argument(
        "--epoch-batches",
        type=int,
        help="batches per pass over the loader, which a framework counts as an epoch",
    )
    parser.add_argument("--losses", type=Path, help="folder for a log of the loss of each document")
    parser.add_argument(
        "--seq-len", type=int, default=256, help="tokens per row (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes per rank (default: %(default)s)"
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument(
        "--width",
        type=int,
        default=128,
        help="hidden size, a multiple of 32 (default: %(default)s)",
    )
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument(
        "--float64", action="store_true", help="train in float64, to compare losses precisely"
    )
    return parser.parse_args()
