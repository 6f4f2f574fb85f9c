"""Composer: a `DataSpec` that counts rows and tokens, and saves the loader's state.

    Trainer(
        train_dataloader=data_spec(loader),
        eval_dataloader=eval_spec(eval_loader),
        callbacks=[CloudloadMonitor(loader), CloudloadLosses(LossLog(loader, "losses"))],
    )

Composer resumes without skipping or replaying batches only if it can save and restore the dataset
of a torch DataLoader, so `data_spec` wraps the loader in a DataLoader.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from cloudload.config import checks
from cloudload.errors import StreamChangedError
from cloudload.integrations.frameworks import explain_missing
from cloudload.loading import Batch, CloudLoader, FromStart
from cloudload.segments import BOUNDS, IGNORED_LABEL, INTEGERS, OF_BATCH
from cloudload.tools.losses.log import LossLog

try:
    from composer import Callback, DataSpec, Logger, State, Trainer
except ImportError as error:
    raise explain_missing(error, "composer", "composer") from error

logger = logging.getLogger("cloudload.integrations")

Tensors = Mapping[str, torch.Tensor]


def data_spec(loader: CloudLoader) -> DataSpec:
    """Wrap a loader for training. Composer then counts rows as samples, and omits padding tokens.

    For a `max_duration` in epochs, use a loader with `stop_every=<batches>`. Raises `ValueError` if
    the loader has micro-batches, because Composer divides batches itself.
    """
    if loader.micro_batches > 1:
        raise ValueError(
            f"the loader divides each step into {loader.micro_batches} micro-batches, which "
            "Composer would count as steps. Omit micro_batch_size, and set "
            "device_train_microbatch_size in the Trainer"
        )
    return _count(_DataLoader(loader))


def eval_spec(loader: CloudLoader) -> DataSpec:
    """Wrap a loader for evaluation, so that every evaluation reads the same batches.

    The loader needs `epochs` (usually 1) or `stop_every`. Raises `ValueError` if it has neither.
    """
    return _count(FromStart(loader))


class CloudloadMonitor(Callback):
    """Logs `loader.stats()` as `cloudload/…` every `every` batches, and after each epoch.

    Logs up to ten values (`Stats.as_dict(brief=True)`), or all of them with `all_stats=True`.
    """

    def __init__(self, loader: CloudLoader, every: int = 10, *, all_stats: bool = False) -> None:
        self._loader, self._every = loader, checks.as_integer("every", every, 1)
        self._is_brief = not all_stats

    def batch_end(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) % self._every == 0:
            self._log(logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        self._log(logger)

    def _log(self, logger: Logger) -> None:
        logger.log_metrics(self._loader.stats().as_dict("cloudload/", brief=self._is_brief))


class CloudloadLosses(Callback):
    """Adds token losses to a `LossLog`, and logs each source's mean as `cloudload/loss/<name>`.

    `find` returns the token losses of the microbatch `state.batch`, in the form that `LossLog.add`
    accepts. By default, these are `state.outputs["token_losses"]`, so the model's `forward` must
    return token losses. For a model that returns only logits, use `lambda state:
    token_losses(state.outputs["logits"], state.batch["labels"])`. The training data must be
    `data_spec(loader)`. Logs the means every `every` batches, and writes the log at each
    checkpoint.
    """

    def __init__(
        self,
        log: LossLog,
        find: Callable[[State], torch.Tensor] = lambda state: state.outputs["token_losses"],
        every: int = 10,
    ) -> None:
        self._log, self._find, self._every = log, find, checks.as_integer("every", every, 1)
        self._row = 0
        """Index of the next microbatch's first row in the batch."""

    def before_train_batch(self, state: State, logger: Logger) -> None:
        self._row = 0  # Composer may retry the batch in smaller microbatches

    def after_loss(self, state: State, logger: Logger) -> None:
        loader, labels = state.dataloader, state.batch["labels"]
        if not isinstance(loader, _DataLoader) or loader.batch is None:
            raise ValueError(
                "CloudloadLosses cannot identify the documents of this batch, because the batch "
                "did not come from data_spec(loader). Pass data_spec(loader) to the Trainer as "
                "train_dataloader"
            )
        self._log.add(loader.batch, self._find(state), labels=labels, at_row=self._row)
        self._row += len(labels)

    def batch_end(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) % self._every == 0:
            means = self._log.take_means().items()
            logger.log_metrics(
                {f"cloudload/loss/{name}": each.mean for name, each in means if each.tokens}
            )

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        self._log.flush()

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        self._log.flush()

    def close(self, state: State, logger: Logger) -> None:
        self._log.close()


class _DataLoader(DataLoader[Batch]):
    """A torch DataLoader over the loader's batches, because Composer requires that type."""

    def __init__(self, loader: CloudLoader) -> None:
        self._rows = _Dataset(loader)
        super().__init__(self._rows, batch_size=None, collate_fn=_as_it_is)  # type: ignore[arg-type]
        self._loader = loader
        # Composer reads batch_size, but passing it to torch's constructor would turn on collation
        vars(self)["batch_size"] = loader.batch_size

    @property
    def batch(self) -> Batch | None:
        """The last batch delivered. Unlike its copies on a device, it has spans."""
        return self._rows.batch

    def __iter__(self) -> Any:
        trainer = sys._getframe(1).f_locals.get("self")
        if isinstance(trainer, Trainer):
            # otherwise a second `fit` would skip the batches that the first one trained on
            trainer.state.dataset_resumption["train"] = True
            self._rows.state = trainer.state
        return super().__iter__()

    def __len__(self) -> int:
        return len(self._loader)


class _Dataset(IterableDataset[Batch]):
    """The loader as a torch dataset, whose state Composer saves and restores."""

    def __init__(self, loader: CloudLoader) -> None:
        self._loader = loader
        self._is_loaded_at_end = False
        self.state: State | None = None
        """The state of the Composer trainer that reads the batches, if any."""
        self.batch: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        is_at_end, self._is_loaded_at_end = self._is_at_end(), False
        if is_at_end and self.state and int(self.state.timestamp.batch_in_epoch):
            return  # the state was saved after the epoch's last batch, so let Composer end it
        for batch in self._loader:
            self.batch = batch
            yield batch
        if self.state and not self._loader.is_at_stop:
            # stop, so that Composer saves the last checkpoint and does not run empty epochs forever
            logger.info("the data ended after %d rows, so training stops", self._loader.rows)
            self.state.stop_training()

    def _is_at_end(self) -> bool:
        return self._is_loaded_at_end or self._loader.is_at_stop

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, str]:
        """Return the state as a single JSON string, which sharded checkpoints store unchanged.

        `num_samples` is the number of rows that Composer has trained on in this epoch.
        """
        is_at_end = num_samples > 0 and self._is_at_end()
        return {
            "cloudload": json.dumps({"loader": self._loader.state_dict(), "is_at_end": is_at_end})
        }

    def load_state_dict(self, state: Mapping[str, str] | None) -> None:
        if not state or "cloudload" not in state:
            raise StreamChangedError(
                "the checkpoint was not saved with data_spec(loader), because its train dataset "
                f"has the keys {sorted(state or ())}, without 'cloudload'. Load a checkpoint that "
                "was saved with data_spec(loader), or set load_weights_only=True to load only the "
                "weights"
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
    """Count a batch's tokens, and the tokens with a label after the model shifts labels by 1."""
    loss_generating = int((batch["labels"][:, 1:] != IGNORED_LABEL).sum())
    # microbatches have no spans, but Composer reads only their loss_generating
    return {
        "total": batch.num_tokens if isinstance(batch, Batch) else loss_generating,
        "loss_generating": loss_generating,
    }


def split_batch(batch: Tensors, microbatch_size: int | float) -> list[dict[str, Any]]:
    """Split a batch into microbatches of `microbatch_size` rows. The last may have fewer rows.

    Each microbatch has the same keys as the batch. Its bounds of segments, such as `cu_seqlens`,
    cover only its rows and start at 0, and its `max_seqlen` is the length of its longest segment.
    """
    size, (num_rows, seq_len) = int(microbatch_size), batch["input_ids"].shape
    microbatches = []
    for start in range(0, num_rows, size):
        stop = min(start + size, num_rows)
        rows: dict[str, Any] = {
            name: tensor[start:stop] for name, tensor in batch.items() if name not in OF_BATCH
        }
        for bounds, longest in BOUNDS.items():
            if bounds in batch:
                ends = batch[bounds]
                own = ends[(ends >= start * seq_len) & (ends <= stop * seq_len)] - start * seq_len
                length = own.diff().max()
                rows |= {bounds: own, longest: int(length) if longest in INTEGERS else length}
        microbatches.append(rows)
    return microbatches
