"""A GPT whose attention keeps the documents of a row apart.

On CUDA, attention is FlexAttention with a block mask, and the blocks are compiled. FlexAttention
has no backward pass on a CPU, so attention there is SDPA with a mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from cloudload.segments import document_attention_mask, document_block_mask

HEAD_DIM = 64


class Sizes(NamedTuple):
    """The sizes of a model."""

    vocab_size: int
    seq_len: int
    width: int
    depth: int


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor, mask: Any) -> Tensor:
        parts = self.queries_keys_values(self.before_attention(hidden))
        # [3, rows, heads, seq_len, head_dim]
        query, key, value = parts.unflatten(-1, (3, -1, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        attended = _attend(query, key, value, mask).transpose(1, 2).flatten(2)
        hidden = torch.add(hidden, self.project(attended))
        return torch.add(hidden, self.mlp(self.before_mlp(hidden)))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Any:
    """Attend to earlier tokens of the same document: [rows, heads, seq_len, head_dim]."""
    if query.is_cuda:
        return flex_attention(query, key, value, block_mask=mask)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


class GPT(nn.Module):
    """A causal language model of GPT-2's form, which returns the mean loss of a batch."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.width)
        self.positions = nn.Embedding(sizes.seq_len, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width) for _ in range(sizes.depth))
        self.last = nn.LayerNorm(sizes.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """Compute the loss of a batch, int64 [rows, seq_len]. A token predicts the next one."""
        make_mask = document_block_mask if input_ids.is_cuda else document_attention_mask
        mask = make_mask(segment_ids)
        hidden = self.tokens(input_ids) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits = linear(self.last(hidden)[:, :-1], self.tokens.weight)
        return cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())


class Trainer:
    """Trains one model several times from the same weights, and compiles it only once."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self.device = torch.device(device)
        torch.manual_seed(0)
        self.model = GPT(sizes).to(self.device)
        self._start = {name: value.clone() for name, value in self.model.state_dict().items()}
        if self.device.type == "cuda":
            for block in self.model.blocks:
                block.compile()

    def restart(self) -> None:
        """Return to the first weights, with a new optimizer."""
        self.model.load_state_dict(self._start)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def move(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Start to copy a batch to the device."""
        return {name: each.to(self.device, non_blocking=True) for name, each in batch.items()}

    def step(self, input_ids: Tensor, segment_ids: Tensor) -> float:
        """Train on a batch in bf16, and return its loss after the device has finished."""
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.model(input_ids, segment_ids)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())
