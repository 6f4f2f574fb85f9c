"""The Hugging Face Trainer, with the loader's state saved in `trainer_state.json`.

    trainer = CloudloadTrainer(model, args, loader=loader, eval_dataset=FromStart(eval_loader))
    trainer.train(resume_from_checkpoint=True)

    class Mine(CloudloadTrainer, YourTrainer): ...    # your own subclass of Trainer, too

The Trainer would wrap a dataset in a DataLoader that reads ahead and shards by rank a second time,
so `CloudloadTrainer` reads the loader directly. A resumed run neither loses nor repeats a batch.

With `flash_attention` in the loader's `fields`, the documents of a row do not affect each other.
Positions restart at 0 in each document; `sdpa` and `eager` attention find documents by them, but
only without a cache and without an attention mask, so the Trainer passes `use_cache=False`.
Flash-attention takes the bounds of documents, and layers of state spaces take `seq_idx`. The
Trainer refuses a model that would ignore what the batch has, because such a model neither fails nor
warns.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from cloudload.errors import StreamChangedError
from cloudload.integrations.frameworks import explain_missing
from cloudload.loading import Batch, CloudLoader, FromStart
from cloudload.system import counted

try:  # first, because the error of transformers does not name the package that the Trainer lacks
    import accelerate  # noqa: F401
except ImportError as error:
    raise explain_missing(error, "accelerate", "transformers") from error

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

logger = logging.getLogger("cloudload.integrations")

_POSITIONS, _BOUNDS, _SEGMENTS = "position_ids", "cu_seq_lens_q", "seq_idx"
_FIELD = "flash_attention"  # the option that adds all of them
_OTHERS = ("segment_ids", "cu_seqlens")


class CloudloadCallback(TrainerCallback, ExportableState):
    """Saves the loader's state with each checkpoint, and loads it when training resumes.

    Raises `ValueError` for `auto_find_batch_size`, and `StreamChangedError` if a checkpoint has no
    loader state.
    """

    def __init__(self, loader: CloudLoader) -> None:
        self.loader = loader
        self._saved = loader.state_dict()

    def state(self) -> dict[str, Any]:
        """Return the state after the last completed step, because the Trainer may save mid-step."""
        return {"args": {}, "attributes": {"loader": self._saved}}

    def note(self) -> None:
        """Record the loader's current state as the one to save."""
        self._saved = self.loader.state_dict()

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if args.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size cannot change a CloudLoader's batch size. Remove "
                "auto_find_batch_size, and set the CloudLoader's batch_size"
            )
        # the loader resumes at its saved position, so the Trainer must not skip batches
        args.ignore_data_skip = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        name = type(self).__name__
        saved = state.stateful_callbacks.get(name)
        if state.global_step and saved is None:
            raise StreamChangedError(
                f"the checkpoint of step {state.global_step} has no loader state, because it was "
                f"saved without {name}. Load a checkpoint that was saved with {name}, or start a "
                "new run from the weights alone"
            )
        if state.global_step:
            self._saved = saved["attributes"]["loader"]
        # load even without a checkpoint, because the Trainer may have read batches to count tokens
        self.loader.load_state_dict(self._saved)
        state.stateful_callbacks[name] = self.state()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.note()


class CloudloadTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """A Trainer whose batches come from a loader.

    It is also a mixin: put it before another subclass of `Trainer` in the list of base classes.
    Logs up to ten values of `loader.stats()` (`Stats.as_dict(brief=True)`), or all of them with
    `all_stats=True`.
    """

    def __init__(
        self, *args: Any, loader: CloudLoader, all_stats: bool = False, **kwargs: Any
    ) -> None:
        self.loader, self._state = loader, CloudloadCallback(loader)
        self._is_brief = not all_stats
        self._mixing: Mixing | None = None
        super().__init__(
            *args, callbacks=[*(kwargs.pop("callbacks", None) or ()), self._state], **kwargs
        )

    def get_train_dataloader(self) -> Any:
        """Return the loader.

        Raises `ValueError` if `per_device_train_batch_size` is not the loader's `batch_size`, if
        `gradient_accumulation_steps` is not its number of micro-batches, or if the number of
        batches in a pass is not a multiple of it. Warns if this number is unknown.
        """
        self._state.note()
        self._check_batch_size()
        self._check_accumulation()
        return self.loader

    def _check_batch_size(self) -> None:
        """Raise `ValueError` unless a step has as many rows as the Trainer counts."""
        args, rows = self.args, self.loader.batch_size
        if args.train_batch_size == rows:
            return
        devices = max(1, args.n_gpu)
        of_devices = f" on each of {devices} devices" if devices > 1 else ""
        advice = f"Create the loader with batch_size={args.train_batch_size}"
        if rows % devices == 0:
            advice = f"Set per_device_train_batch_size={rows // devices}"
        raise ValueError(
            f"per_device_train_batch_size is {args.per_device_train_batch_size}{of_devices}, but "
            f"the loader's batch_size is {rows}. The Trainer would log a wrong "
            f"train_samples_per_second. {advice}"
        )

    def _check_accumulation(self) -> None:
        """Raise `ValueError` if a step would not be the loader's, or if a pass may lose gradients
        at its end. Warn if that is unknown."""
        accumulate, loader = self.args.gradient_accumulation_steps, self.loader
        if loader.has_fixed_steps and accumulate != loader.micro_batches:
            raise ValueError(
                f"gradient_accumulation_steps is {accumulate}, but a step of the loader has "
                f"{loader.micro_batches} batch{'es' * (loader.micro_batches != 1)} on "
                f"{counted(loader.world_size, 'rank')}. Set "
                f"gradient_accumulation_steps={loader.micro_batches}"
            )
        rest = 0 if loader.is_endless or accumulate == 1 or loader.has_fixed_steps else None
        with suppress(TypeError):
            rest = len(loader) % accumulate
        if rest:
            raise ValueError(
                f"a pass over the loader has {len(self.loader)} batches, which is not a multiple "
                f"of gradient_accumulation_steps={accumulate}, so the gradients accumulated at the "
                "end of the pass may be lost. Set stop_every to a multiple of "
                "gradient_accumulation_steps, or change gradient_accumulation_steps"
            )
        if rest is None:
            logger.warning(
                "the number of batches in a pass over the loader is unknown, so the Trainer may "
                "lose the gradients accumulated at the end of a pass. Set stop_every to a multiple "
                "of gradient_accumulation_steps"
            )

    def num_examples(self, dataloader: object) -> int:
        """Return the total number of rows on all ranks in a pass over `dataloader`."""
        if dataloader is self.loader:
            return len(self.loader) * self.loader.batch_size * self.loader.world_size
        return cast(int, super().num_examples(dataloader))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return `eval_dataset` if it is a `FromStart`, otherwise the Trainer's DataLoader for it.

        `eval_dataset` may also be a key of `self.eval_dataset`. None means `self.eval_dataset`.
        """
        asked = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(asked, str):
            asked = self.eval_dataset[asked]
        return asked if isinstance(asked, FromStart) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return `test_dataset` if it is a `FromStart`, otherwise the Trainer's DataLoader."""
        if isinstance(test_dataset, FromStart):
            return test_dataset
        return super().get_test_dataloader(test_dataset)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss with documents apart, if the batch has fields for this.

        Raises `ValueError` if the model would ignore the fields that separate documents.
        """
        if self._mixing is None:
            self._mixing = check_packed_rows(self.model, inputs)
        return super().compute_loss(model, self._mixing.arrange(inputs), *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log `logs`, and `loader.stats()` as `cloudload/…` if `logs` contains a training loss."""
        numbers: dict[str, Any] = {}
        if "loss" in logs:
            numbers = self.loader.stats().as_dict("cloudload/", brief=self._is_brief)
        super().log({**logs, **numbers}, *args, **kwargs)


@dataclass(frozen=True)
class Mixing:
    """How a Hugging Face model mixes the tokens of a row, and which fields keep documents apart.

    The defaults are for other models, whose authors decide which fields they read.
    """

    model: str
    """Name of the model's class."""
    attention: str = ""
    layers: tuple[str, ...] = ()
    """Kinds of the layers that are not attention, such as `linear_attention`."""
    has_segments: bool = False
    """Whether there are such layers, and all of them take `seq_idx`."""
    has_cache: bool = False
    """Whether the forward pass takes `use_cache`."""
    ignored: frozenset[str] = frozenset()
    """Those of the fields `segment_ids` and `cu_seqlens` that the forward pass does not take."""

    @property
    def is_flash(self) -> bool:
        """Whether the model has flash attention."""
        return "flash" in self.attention

    def arrange(self, batch: Any) -> Mapping[str, Any]:
        """Return the arguments of a forward pass that keeps the documents of a batch apart.

        A batch with the field `flash_attention` becomes one row, if the model has flash attention,
        or layers that take `seq_idx`. A batch with `position_ids` gets `use_cache=False`, if the
        model takes it.
        """
        if _POSITIONS not in batch:
            return cast(Mapping[str, Any], batch)
        if _BOUNDS in batch and (self.is_flash or self.has_segments):
            batch = Batch(batch).flatten()
        return {**batch, "use_cache": False} if self.has_cache else batch

    def check(self, batch: Mapping[str, Any]) -> None:
        """Check that the fields of a batch keep its documents apart; see `check_packed_rows`."""
        if _POSITIONS in batch:
            self._check_positions(batch)
        elif ignored := [name for name in _OTHERS if name in batch and name in self.ignored]:
            raise ValueError(
                f"{self.model} ignores {' and '.join(ignored)}, so tokens would attend across "
                f"documents. Add {_FIELD!r} to fields, or remove "
                f"{' and '.join(map(repr, ignored))} from fields"
            )

    def _check_positions(self, batch: Mapping[str, Any]) -> None:
        num_rows, layers = len(batch["input_ids"]), ", ".join(self.layers)
        if self.is_flash and num_rows > 1 and _BOUNDS not in batch:
            raise ValueError(
                f"{self.attention} reads position_ids only in batches of one row, but the batch "
                f"has {num_rows}, so tokens would attend across documents. Add {_FIELD!r} to fields"
            )
        if layers and not self.has_segments:
            logger.warning(
                "%s has layers that ignore position_ids and seq_idx (%s), so the documents of a "
                "row affect each other. To separate them, use packing='one_per_row'",
                self.model,
                layers,
            )
        elif layers and _SEGMENTS not in batch:
            raise ValueError(
                f"{self.model} has layers that ignore position_ids ({layers}), so the documents of "
                f"a row would affect each other. Add {_FIELD!r} to fields"
            )


def check_packed_rows(model: Any, batch: Mapping[str, Any]) -> Mixing:
    """Check that a Hugging Face model separates the documents of a batch whose fields ask for it.

    Call it once before training in a loop of your own; `CloudloadTrainer` does. Raises `ValueError`
    if the model would ignore the fields. Warns if some of its layers would. If layers need
    `seq_idx`, the model's next forward pass raises `ValueError` if it does not reach them, because
    some models take it and do not pass it on.
    """
    mixing = find_mixing(model)
    mixing.check(batch)
    if mixing.has_segments and _SEGMENTS in batch:
        for mixer in _list_mixers(model):
            _expect_segments(mixer, mixing.model)
    return mixing


def _expect_segments(mixer: torch.nn.Module, model: str) -> None:
    """Let a layer raise `ValueError` if its next forward pass has no `seq_idx`."""

    def look(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook.remove()
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        if given.get(_SEGMENTS, kwargs.get(_SEGMENTS)) is None:
            raise ValueError(
                f"{model} does not pass seq_idx to its layers ({type(module).__name__}), so the "
                "documents of a row would affect each other. Use packing='one_per_row'"
            )

    hook = mixer.register_forward_pre_hook(look, with_kwargs=True)


def find_mixing(model: Any) -> Mixing:
    """Find how a model mixes the tokens of a row."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None:
        return Mixing(name)
    mixers = _list_mixers(model)
    # some configs, such as those of Mamba 2 and Falcon H1, do not list the kinds of layers
    kinds = set(_list_mixing_layers(config)) or {type(mixer).__name__ for mixer in mixers}
    return Mixing(
        name,
        attention=str(getattr(config, "_attn_implementation", None)),
        layers=tuple(sorted(kinds)),
        has_segments=bool(mixers) and all(_takes(mixer, _SEGMENTS) for mixer in mixers),
        has_cache=hasattr(config, "use_cache") and _takes(model, "use_cache"),
        ignored=frozenset(_OTHERS) - inspect.signature(model.forward).parameters.keys(),
    )


def _list_mixers(model: Any) -> list[torch.nn.Module]:
    """The layers of a model that mix tokens by convolutions."""
    return [
        module
        for module in model.modules()
        if any(isinstance(child, torch.nn.Conv1d) for child in module.children())
    ]


def _takes(module: Any, name: str) -> bool:
    parameters = inspect.signature(module.forward).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _list_mixing_layers(config: Any) -> Iterator[str]:
    """Yield the kinds of a model's layers that are not attention, such as `linear_attention`."""
    for name in ("layer_types", "layers_block_type"):
        for kind in getattr(config, name, None) or ():
            if "attention" not in kind or "linear" in kind:
                yield kind
