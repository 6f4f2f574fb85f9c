"""torchtitan: a dataloader that torchtitan's trainer builds, iterates, saves and loads.

    data = CloudloadDataLoader.Config(data="s3://…", options={"num_workers": 8})
    Trainer.Config(dataloader=data, ...)

A row has one token more than torchtitan's sequences. Inputs are all tokens but the last, and labels
all but the first. The state is a single JSON string, the same on every rank, so a different number
of ranks can load a checkpoint. DCP refuses a checkpoint that a different dataloader wrote, because
the string is missing. With `checkpoint.exclude_from_loading=["dataloader"]`, everything else is
loaded, and the data starts from its beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cloudload.config import choices
from cloudload.errors import StreamChangedError
from cloudload.integrations.dcp import LoaderState
from cloudload.integrations.frameworks import explain_missing
from cloudload.loading import CloudLoader

try:
    from torchtitan.components.metrics import MetricsProcessor
except ImportError as error:
    raise explain_missing(error, "torchtitan", "torchtitan") from error
try:
    from torchtitan.components.dataloader import BaseDataLoader
except ModuleNotFoundError:  # the module's path in torchtitan after 0.3
    from torchtitan.components.data.loader import BaseDataLoader

Tensors = tuple[dict[str, torch.Tensor], torch.Tensor]


class CloudloadDataLoader(BaseDataLoader):
    """Batches of a `CloudLoader` in torchtitan's format: `({"input": …, "positions": …}, labels)`.

    All tensors are int64 [rows, seq_len]. For torchtitan after 0.3, which sizes batches in tokens,
    they are flattened to [rows * seq_len]. Raises `ValueError` if the tokens of such a batch do not
    divide into rows, and the errors of `CloudLoader`. `load_state_dict` raises `StreamChangedError`
    for the state of a different dataloader.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of the dataloader.

        `data` is the argument of `CloudLoader`, and `options` are its other arguments by name. The
        tokenizer is torchtitan's unless `options` has one. By default, positions restart at each
        document, so that a model can keep documents from attending to one another, and no document
        predicts the first token of the next. To change both, set `fields` to () and `mask_edges` to
        False in `options`.
        """

        data: Any = None
        options: dict[str, Any] = field(default_factory=dict)
        infinite: bool = True
        """Whether the data repeats forever, instead of ending after one epoch.

        torchtitan's validators set it to False."""
        repeat: bool = True
        """The name of `infinite` in torchtitan after 0.3."""

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
                f"batches of {sizes['num_tokens_per_batch']} tokens cannot be divided into "
                f"sequences of {seq_len} tokens, because {rest} tokens would be left over. Set "
                "training.num_tokens_per_microbatch_per_dp_rank to a multiple of "
                "training.max_context_length"
            )
        if fixed := sorted({"global_batch_size", "micro_batch_size"} & config.options.keys()):
            raise ValueError(
                f"options has {' and '.join(fixed)}, but torchtitan divides steps into batches "
                "itself. Set training.local_batch_size and training.global_batch_size instead"
            )
        options = {
            "dp_rank": dp_rank,
            "dp_world_size": dp_world_size,
            "fields": ["position_ids"],
            "mask_edges": True,
        }
        options["epochs"] = None if config.infinite and config.repeat else 1
        if "tokenizer" not in config.options:
            # torchtitan wraps a tokenizers.Tokenizer, which does not record its end-of-text token
            options["tokenizer"] = tokenizer.tokenizer
            if "tokens_key" not in config.options:
                options["eos"] = tokenizer.eos_token or choices.AUTO
        self.loader = CloudLoader(
            config.data, seq_len=seq_len + 1, batch_size=num_rows, **{**options, **config.options}
        )

    def __iter__(self) -> Iterator[Tensors]:
        # torchtitan ends training when an iteration ends, so ignore stop_every
        for batch in self.loader.take(sys.maxsize):
            ids = batch["input_ids"]
            # torchtitan's models require positions, from which they can build attention masks
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
            return  # torchtitan passes an empty dict if the checkpoint has no dataloader state
        if "cloudload" not in state_dict:
            raise StreamChangedError(
                "CloudloadDataLoader did not write this checkpoint's dataloader state, which has "
                f"the keys {sorted(state_dict)}. Resume with the dataloader that wrote it, or set "
                "checkpoint.exclude_from_loading=['dataloader'] to start from the beginning of the "
                "data"
            )
        LoaderState(self.loader).load_state_dict(state_dict)

    def close(self) -> None:
        self.loader.close()


class CloudloadMetrics(MetricsProcessor):
    """Logs `loader.stats()` as `cloudload/…` together with torchtitan's metrics.

    Call `watch` with the trainer's dataloader before training. Logs up to ten values
    (`Stats.as_dict(brief=True)`), or all of them with `watch(dataloader, all_stats=True)`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """The same settings as torchtitan's `MetricsProcessor.Config`."""

    _watched: CloudloadDataLoader | None = None
    _is_brief = True

    def watch(self, dataloader: CloudloadDataLoader, *, all_stats: bool = False) -> None:
        self._watched, self._is_brief = dataloader, not all_stats

    def log(self, *args: Any, extra_metrics: dict[str, Any] | None = None, **kwargs: Any) -> None:
        numbers: dict[str, Any] = {}
        if self._watched:
            numbers = self._watched.loader.stats().as_dict("cloudload/", brief=self._is_brief)
        super().log(*args, extra_metrics={**(extra_metrics or {}), **numbers}, **kwargs)
