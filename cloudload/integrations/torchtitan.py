"""torchtitan: a loader as its trainer builds, iterates, saves and loads one.

    Trainer.Config(dataloader=CloudloadDataLoader.Config(data="s3://…", options={"num_workers": 8}), ...)

A row has one token more than torchtitan's sequences: inputs are all but its last, labels all but
its first. The state is one leaf of text that is the same on every rank, so checkpoints are loaded
on any number of them. One that another dataloader wrote lacks it, which DCP refuses:
`checkpoint.exclude_from_loading=["dataloader"]` takes the rest of it, and begins the data anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torchtitan.components.metrics import MetricsProcessor

from cloudload.config import AUTO
from cloudload.errors import StreamChangedError
from cloudload.integrations.dcp import LoaderState
from cloudload.loader import CloudLoader

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ModuleNotFoundError:  # where it is after 0.3
    from torchtitan.components.data.loader import BaseDataLoader

Tensors = tuple[dict[str, torch.Tensor], torch.Tensor]


class CloudloadDataLoader(BaseDataLoader):
    """Batches of a `CloudLoader` as torchtitan's models take them: `({"input": …, "positions": …},
    labels)`, int64.

    They are [rows, seq_len]; for a torchtitan that counts batches in tokens (after 0.3), the rows
    are joined to one sequence.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Which data, and the arguments of `CloudLoader` by name; its tokenizer is torchtitan's
        unless they have one.

        By default documents neither see nor predict one another, as with torchtitan's own loaders;
        options fields=() and mask_edges=False let them.
        """

        data: Any = None
        options: dict[str, Any] = field(default_factory=dict)
        infinite: bool = True
        """Whether epoch follows epoch: torchtitan's validators set it."""
        repeat: bool = True
        """What they call it after 0.3."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, tokenizer: Any, **sizes: Any
    ) -> None:
        self._is_flat = "num_tokens_per_batch" in sizes
        seq_len = sizes["max_context_length" if self._is_flat else "seq_len"]
        num_rows, rest = (
            divmod(sizes["num_tokens_per_batch"], seq_len)
            if self._is_flat
            else (sizes["local_batch_size"], 0)
        )
        if rest:
            raise ValueError(
                f"batches of {sizes['num_tokens_per_batch']} tokens are no whole sequences of "
                f"{seq_len}: {rest} are left over. "
                "Set training.num_tokens_per_microbatch_per_dp_rank to a multiple of "
                "training.max_context_length"
            )
        options = {
            "dp_rank": dp_rank,
            "dp_world_size": dp_world_size,
            "fields": ["position_ids"],
            "mask_edges": True,
        }
        options["epochs"] = None if config.infinite and config.repeat else 1
        if "tokenizer" not in config.options:
            # torchtitan's wraps a tokenizers.Tokenizer, which does not know what ends a document
            options |= {"tokenizer": tokenizer.tokenizer, "eos": tokenizer.eos_token or AUTO}
        self.loader = CloudLoader(
            config.data, seq_len=seq_len + 1, batch_size=num_rows, **{**options, **config.options}
        )

    def __iter__(self) -> Iterator[Tensors]:
        # an end is the end of training, so it is that of the data, and none of stop_every's
        for batch in self.loader.take(sys.maxsize):
            ids = batch["input_ids"]
            # torchtitan makes its attention masks from positions, and its language models refuse to
            # do without
            positions = batch.get("position_ids", torch.arange(ids.shape[1]).expand_as(ids))
            inputs = {
                "input": self._shape(ids[:, :-1]),
                "positions": self._shape(positions[:, :-1]),
            }
            yield inputs, self._shape(batch["labels"][:, 1:])

    def _shape(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.flatten() if self._is_flat else tokens.contiguous()

    def state_dict(self) -> dict[str, str]:
        return LoaderState(self.loader).state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if not state_dict:
            return  # torchtitan's way to say that there is none
        if "cloudload" not in state_dict:
            raise StreamChangedError(
                "the checkpoint's dataloader is no CloudloadDataLoader; its state has "
                f"{sorted(state_dict)}. Resume with the one "
                "that wrote it, or begin the data anew with "
                "checkpoint.exclude_from_loading=['dataloader']"
            )
        LoaderState(self.loader).load_state_dict(state_dict)

    def close(self) -> None:
        self.loader.close()


class CloudloadMetrics(MetricsProcessor):
    """Logs `loader.stats()` as `cloudload/…` beside torchtitan's metrics, of the trainer's
    dataloader that `watch` is given."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """Of torchtitan's own."""

    _watched: CloudloadDataLoader | None = None

    def watch(self, dataloader: CloudloadDataLoader) -> None:
        self._watched = dataloader

    def log(self, *args: Any, extra_metrics: dict[str, Any] | None = None, **kwargs: Any) -> None:
        numbers = self._watched.loader.stats().as_dict("cloudload/") if self._watched else {}
        super().log(*args, extra_metrics={**(extra_metrics or {}), **numbers}, **kwargs)
