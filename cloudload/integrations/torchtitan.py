"""torchtitan: a loader as its trainer builds, iterates, saves and loads one.

    dataloader=CloudloadDataLoader.Config(data="s3://…", options={"tokenizer": "…", "num_workers": 8})

A row has one token more than torchtitan's sequences: inputs are all but its last, labels all but its first. The state is one leaf
of text that is the same on every rank, so checkpoints are loaded on any number of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from cloudload.loader import CloudLoader


class CloudloadDataLoader(BaseDataLoader):
    """Batches of a `CloudLoader` as torchtitan has them: `({"input": ids}, labels)`, both int64 [rows, seq_len]."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Which data, and the arguments of `CloudLoader` by name; its tokenizer is torchtitan's unless they have one."""

        data: Any = None
        options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, tokenizer: Any = None, **sizes: Any) -> None:
        # torchtitan's names of the two sizes have changed
        seq_len = sizes.get("seq_len") or sizes["max_context_length"]
        batch_size = sizes.get("local_batch_size") or sizes["num_tokens_per_batch"] // seq_len
        defaults = {"tokenizer": getattr(tokenizer, "tokenizer", tokenizer), "dp_rank": dp_rank, "dp_world_size": dp_world_size}
        self.loader = CloudLoader(config.data, seq_len=seq_len + 1, batch_size=batch_size, **(defaults | config.options))

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            yield {"input": batch["input_ids"][:, :-1].contiguous()}, batch["labels"][:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {"cloudload": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict["cloudload"]))

    def close(self) -> None:
        self.loader.close()
