"""The Hugging Face Trainer: batches as they come, the state in `trainer_state.json`, no batch skipped or replayed.

    class MyTrainer(CloudloadTrainer, Trainer): ...

    MyTrainer(model, args, loader=loader, eval_dataset=FromStart(eval_loader)).train(resume_from_checkpoint=True)

The Trainer would wrap a dataset in a DataLoader of its own, read ahead, and share it out again; so it is given the loader itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from cloudload.errors import StreamChangedError
from cloudload.from_start import FromStart
from cloudload.loader import CloudLoader


class CloudloadCallback(TrainerCallback, ExportableState):
    """Saves the loader's state with each checkpoint, and loads it when training resumes."""

    def __init__(self, loader: CloudLoader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"loader": self.loader.state_dict()}}

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # the loader stands where it should, there is nothing to skip
        args.ignore_data_skip = True

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        name = type(self).__name__
        saved = state.stateful_callbacks.get(name)
        if state.global_step:
            if saved is None:
                raise StreamChangedError(
                    f"the checkpoint of step {state.global_step} has no state of the loader: it was saved without "
                    f"{name}. Load one that has it, or start a new run from its weights alone"
                )
            self.loader.load_state_dict(saved["attributes"]["loader"])
        state.stateful_callbacks[name] = self.state()


class CloudloadTrainer:
    """What a Trainer that trains from a loader has more; goes before `Trainer` among the bases of a class."""

    def __init__(self, *args: Any, loader: CloudLoader, **kwargs: Any) -> None:
        self.loader = loader
        super().__init__(*args, callbacks=[*(kwargs.pop("callbacks", None) or ()), CloudloadCallback(loader)], **kwargs)  # type: ignore[call-arg]

    def get_train_dataloader(self) -> Any:
        accumulate = self.args.gradient_accumulation_steps  # type: ignore[attr-defined]
        with suppress(TypeError):
            if len(self.loader) % accumulate:
                raise ValueError(
                    f"stop_every is {len(self.loader)}, which is not a multiple of gradient_accumulation_steps {accumulate}: "
                    "what is accumulated at the end of a pass would be lost. Make it a multiple"
                )
        return self.loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """An `eval_dataset` may be a `FromStart`, or a dict with some."""
        asked = self.eval_dataset if eval_dataset is None else eval_dataset  # type: ignore[attr-defined]
        if isinstance(asked, str):
            asked = self.eval_dataset[asked]  # type: ignore[attr-defined]
        return asked if isinstance(asked, FromStart) else super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With the numbers of `loader.stats()` as `cloudload/…` wherever a training loss is logged."""
        if "loss" in logs:
            logs |= {f"cloudload/{name}": value for name, value in self.loader.stats().as_dict().items()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
