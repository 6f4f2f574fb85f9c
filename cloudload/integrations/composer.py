"""Composer: a `DataSpec` that counts packed rows right and saves with Composer's own checkpoints.

    Trainer(train_dataloader=data_spec(loader), eval_dataloader=eval_spec(eval_loader), callbacks=[CloudloadMonitor(loader)], ...)

Composer saves and restores the dataset of a torch DataLoader, and then neither skips nor replays
batches; so it is given one.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from composer import Callback, DataSpec, Logger, State, Trainer
from torch.utils.data import DataLoader, IterableDataset

from cloudload.batch import Batch
from cloudload.errors import StreamChangedError
from cloudload.loader import CloudLoader, FromStart
from cloudload.segments import IGNORED_LABEL

logger = logging.getLogger(__name__)

Tensors = Mapping[str, torch.Tensor]


def data_spec(loader: CloudLoader) -> DataSpec:
    """For training. Samples are rows, tokens those of documents; `max_duration` in epochs needs
    `stop_every=<batches>`."""
    return _count(_DataLoader(loader))


def eval_spec(loader: CloudLoader) -> DataSpec:
    """For evaluation: every evaluation reads the same batches. Its loader has `epochs=1`, or
    `stop_every`."""
    return _count(FromStart(loader))


class CloudloadMonitor(Callback):
    """Logs `loader.stats()` as `cloudload/…` every so many batches, and at the end of epochs."""

    def __init__(self, loader: CloudLoader, every: int = 10) -> None:
        self._loader, self._every = loader, every

    def batch_end(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) % self._every == 0:
            self._log(logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        self._log(logger)

    def _log(self, logger: Logger) -> None:
        logger.log_metrics(self._loader.stats().as_dict("cloudload/"))


class _DataLoader(DataLoader[Batch]):
    """A DataLoader in name, for Composer's sake."""

    def __init__(self, loader: CloudLoader) -> None:
        self._rows = _Dataset(loader)
        super().__init__(self._rows, batch_size=None, collate_fn=_as_it_is)  # type: ignore[arg-type]
        self._loader = loader
        # which torch would take for the size to collate by, and Composer for that of a microbatch
        vars(self)["batch_size"] = loader.batch_size

    def __iter__(self) -> Any:
        trainer = sys._getframe(1).f_locals.get("self")
        if isinstance(trainer, Trainer):
            # otherwise a second `fit` would skip what the first one has trained on
            trainer.state.dataset_resumption["train"] = True
            self._rows.state = trainer.state
        return super().__iter__()

    def __len__(self) -> int:
        return len(self._loader)


class _Dataset(IterableDataset[Batch]):
    """What Composer saves and restores."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader
        self._is_loaded_at_end = False
        self.state: State | None = None
        """Of the Composer that iterates."""

    def __iter__(self) -> Iterator[Batch]:
        is_at_end, self._is_loaded_at_end = self._is_at_end(), False
        if is_at_end and self.state and int(self.state.timestamp.batch_in_epoch):
            return  # Composer has yet to see the end of the epoch whose last batch it has trained on
        yield from self._loader
        if self.state and not self._loader.is_at_stop:
            # now, so that the last checkpoint is still saved; otherwise empty epochs would follow
            # for ever
            logger.info("the data has ended after %d rows, and so does training", self._loader.rows)
            self.state.stop_training()

    def _is_at_end(self) -> bool:
        return self._is_loaded_at_end or self._loader.is_at_stop

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, str]:
        """One leaf of text, which sharded checkpoints, too, take as it is. Composer has had
        `num_samples` of the epoch."""
        is_at_end = num_samples > 0 and self._is_at_end()
        return {
            "cloudload": json.dumps({"loader": self._loader.state_dict(), "is_at_end": is_at_end})
        }

    def load_state_dict(self, state: Mapping[str, str] | None) -> None:
        if not state or "cloudload" not in state:
            raise StreamChangedError(
                f"the checkpoint's train dataset is {state and sorted(state)}, and none of "
                "data_spec(loader). Load one that was "
                "saved with it, or take its weights alone: load_weights_only=True"
            )
        saved = json.loads(state["cloudload"])
        self._loader.load_state_dict(saved["loader"])
        self._is_loaded_at_end = saved["is_at_end"]


def _count(batches: Any) -> DataSpec:
    return DataSpec(
        batches,
        get_num_samples_in_batch=_count_rows,
        get_num_tokens_in_batch=_count_tokens,
        split_batch=split_batch,
    )


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _count_rows(batch: Tensors) -> int:
    return len(batch["input_ids"])


def _count_tokens(batch: Tensors) -> dict[str, int]:
    """`loss_generating` are the labels that a model which shifts them is trained on."""
    loss_generating = int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())
    # a microbatch is no Batch any more, and Composer asks it for the others only
    return {
        "total": batch.num_tokens if isinstance(batch, Batch) else loss_generating,
        "loss_generating": loss_generating,
    }


def split_batch(batch: Tensors, microbatch_size: int | float) -> list[dict[str, torch.Tensor]]:
    """Microbatches of so many rows; each has the segments of its own rows in `cu_seqlens`, counted
    from its own start."""
    size, (num_rows, seq_len) = int(microbatch_size), batch["input_ids"].shape
    microbatches = []
    for start in range(0, num_rows, size):
        stop = min(start + size, num_rows)
        rows = {
            name: tensor[start:stop]
            for name, tensor in batch.items()
            if name not in ("cu_seqlens", "max_seqlen")
        }
        if "cu_seqlens" in batch:
            ends = batch["cu_seqlens"]
            own = ends[(ends >= start * seq_len) & (ends <= stop * seq_len)] - start * seq_len
            rows |= {"cu_seqlens": own, "max_seqlen": own.diff().max()}
        microbatches.append(rows)
    return microbatches
