"""In one process, the Hugging Face Trainer does not skip or repeat batches, or wrap the loader."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, FromStart
from cloudload.errors import StreamChangedError
from cloudload.provenance import load_state
from testkit.counted import count
from testkit.loaders import make_loader, rows_of
from tests.frameworks.small import Model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]


def make_trainer(
    loader: CloudLoader,
    folder: Path,
    *,
    eval_dataset: Any = None,
    trainer_class: Any = None,
    **options: Any,
) -> Any:
    """Make a trainer of the small model; a `CloudloadTrainer` by default."""
    from transformers import TrainingArguments

    from cloudload.integrations.transformers import CloudloadTrainer

    defaults = {
        "per_device_train_batch_size": loader.batch_size,
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    make = trainer_class or CloudloadTrainer
    return make(Model(), args, loader=loader, eval_dataset=eval_dataset)


@pytest.mark.parametrize("options", [{}, {"stop_every": 4}, {"stop_every": "epoch"}])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resume_continues_with_the_next_batch(
    folder: str, tmp_path: Path, options: dict[str, Any], accumulate: int
) -> None:
    settings = {"gradient_accumulation_steps": accumulate}
    whole = make_trainer(make_loader(folder, **options), tmp_path, **settings)
    whole.train()
    rows = whole.model.trained
    if options.get("stop_every") != "epoch":
        # if the data ends during gradient accumulation, the Trainer drops the accumulated gradients
        assert rows == rows_of(make_loader(folder).take(6 * accumulate))
    for saved_after in (2, 4):
        resumed = make_trainer(make_loader(folder, **options), tmp_path / "resumed", **settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved_after}"))
        assert resumed.state.global_step == 6
        assert rows[-len(resumed.model.trained) :] == resumed.model.trained
        if options.get("stop_every") != "epoch":
            assert len(resumed.model.trained) == 4 * accumulate * (6 - saved_after)


def test_epochs_of_a_number_of_batches_may_say_how_long_to_train(
    folder: str, tmp_path: Path
) -> None:
    settings = {"max_steps": -1, "num_train_epochs": 3, "gradient_accumulation_steps": 2}
    whole = make_trainer(make_loader(folder, stop_every=4), tmp_path, **settings)
    whole.train()
    assert whole.state.global_step == 6
    resumed = make_trainer(make_loader(folder, stop_every=4), tmp_path, **settings)
    resumed.train(resume_from_checkpoint=True)
    other = make_trainer(make_loader(folder, stop_every=4), tmp_path, **settings)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert other.model.trained == whole.model.trained[-16:]
    with pytest.raises(
        ValueError, match=r"has 3 batches, .* gradient_accumulation_steps=2.*multiple"
    ):
        make_trainer(make_loader(folder, stop_every=3), tmp_path, **settings).train()


def test_with_lengths_epochs_of_the_trainer_are_epochs_of_the_data(
    folder: str, tmp_path: Path
) -> None:
    lengths = str(tmp_path / "lengths")
    report = count(folder, out=lengths)
    options: dict[str, Any] = {"lengths": lengths, "batch_size": 40}
    steps = make_loader(folder, **options).count_batches()
    loader = make_loader(folder, stop_every=steps, **options)
    trainer = make_trainer(loader, tmp_path, max_steps=-1, num_train_epochs=2)
    trainer.train()
    assert trainer.state.global_step == 2 * steps
    size = report.tokens + report.documents + report.empty
    tokens = loader.stats().tokens
    assert 2 * size <= tokens < 2 * size + 2 * 40 * loader.seq_len


def test_gradients_are_accumulated_over_the_micro_batches_of_a_step(
    folder: str, tmp_path: Path
) -> None:
    options = {"batch_size": None, "global_batch_size": 10, "micro_batch_size": 3}
    loader = make_loader(folder, **options)
    message = r"gradient_accumulation_steps is 1, but a step of the loader has 4 batches on 1 rank"
    with pytest.raises(ValueError, match=message):
        make_trainer(loader, tmp_path).train()
    settings = {"gradient_accumulation_steps": 4}
    make_trainer(loader, tmp_path, **settings).train()
    assert loader.rows == 60
    resumed = make_loader(folder, **options)
    checkpoint = str(tmp_path / "checkpoint-4")
    trainer = make_trainer(resumed, tmp_path / "resumed", **settings)
    trainer.train(resume_from_checkpoint=checkpoint)
    rows = [row for row in trainer.model.trained if any(row)]
    assert rows == rows_of(make_loader(folder, batch_size=10).take(6))[40:]


def test_a_checkpoint_without_the_loader_is_refused(folder: str, tmp_path: Path) -> None:
    make_trainer(make_loader(folder), tmp_path).train()
    file = tmp_path / "checkpoint-4" / "trainer_state.json"
    state = json.loads(file.read_text())
    del state["stateful_callbacks"]["CloudloadCallback"]
    file.write_text(json.dumps(state))
    with pytest.raises(StreamChangedError, match="checkpoint of step 4 has no loader state"):
        make_trainer(make_loader(folder), tmp_path).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-4")
        )


def test_a_checkpoint_saved_within_a_step_has_the_batches_before_it(
    folder: str, tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    class SaveWithin(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                trainer._save_checkpoint(trainer.model, trial=None)

    trainer = make_trainer(
        make_loader(folder), tmp_path, save_strategy="no", gradient_accumulation_steps=2
    )
    trainer.add_callback(SaveWithin())
    trainer.train()
    resumed = make_trainer(make_loader(folder), tmp_path, gradient_accumulation_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.model.trained == rows_of(make_loader(folder).take(12))[4 * 6 :]


def test_tokens_that_the_trainer_counts_first_are_trained_on_all_the_same(
    folder: str, tmp_path: Path
) -> None:
    from transformers import TrainingArguments

    if not hasattr(TrainingArguments, "include_tokens_per_second"):
        pytest.skip("only transformers 4 counts tokens before it trains")
    settings = {"max_steps": -1, "num_train_epochs": 2, "include_tokens_per_second": True}
    trainer = make_trainer(make_loader(folder, stop_every=3), tmp_path, **settings)
    trainer.train()
    trainer.train()
    assert trainer.model.trained == rows_of(make_loader(folder).take(12))


def test_what_would_change_the_batches_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auto_find_batch_size"):
        make_trainer(make_loader(folder), tmp_path, auto_find_batch_size=True)


def test_other_trainers_read_a_loader_with_the_same_class(folder: str, tmp_path: Path) -> None:
    from transformers import Trainer

    from cloudload.integrations.transformers import CloudloadTrainer

    class Other(Trainer):
        steps = 0

        def training_step(self, *args: Any, **options: Any) -> Any:
            self.steps += 1
            return super().training_step(*args, **options)

    class Both(CloudloadTrainer, Other):
        pass

    class Named(CloudloadTrainer, Trainer):
        pass

    trainer = make_trainer(make_loader(folder), tmp_path, trainer_class=Both)
    trainer.train()
    assert trainer.steps == 6
    assert trainer.model.trained == rows_of(make_loader(folder).take(6))
    named = make_trainer(make_loader(folder), tmp_path, trainer_class=Named)
    named.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert named.model.trained == trainer.model.trained[4 * 4 :]


@pytest.mark.parametrize(
    ("size", "num_devices", "expected"),
    [
        (8, 1, "is 8, but the loader's batch_size is 4. .*Set per_device_train_batch_size=4"),
        (1, 1, "is 1, but the loader's batch_size is 4. .*Set per_device_train_batch_size=4"),
        (4, 2, "is 4 on each of 2 devices, but .* is 4. .*Set per_device_train_batch_size=2"),
        (4, 3, r"is 4 on each of 3 devices, but .* is 4. .*Create the loader with batch_size=12"),
    ],
)
def test_a_batch_size_other_than_the_loaders_is_refused(
    folder: str, tmp_path: Path, size: int, num_devices: int, expected: str
) -> None:
    loader = make_loader(folder)
    trainer = make_trainer(loader, tmp_path, per_device_train_batch_size=size)
    trainer.args._n_gpu = num_devices
    with pytest.raises(ValueError, match=f"per_device_train_batch_size {expected}"):
        trainer.train()
    assert loader.rows == 0


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {"max_steps": 4}),
        ({"stop_every": 2}, {"max_steps": 4}),
        ({"stop_every": 4}, {"max_steps": -1, "num_train_epochs": 2}),
    ],
)
def test_the_samples_that_the_trainer_counts_are_the_rows_read(
    folder: str, tmp_path: Path, options: dict[str, Any], settings: dict[str, Any], accumulate: int
) -> None:
    loader = make_loader(folder, **options)
    trainer = make_trainer(loader, tmp_path, gradient_accumulation_steps=accumulate, **settings)
    metrics = trainer.train().metrics
    counted = metrics["train_samples_per_second"] * metrics["train_runtime"]
    assert counted == pytest.approx(loader.rows, rel=0.05)


def test_an_epoch_has_the_rows_of_all_ranks(folder: str, tmp_path: Path) -> None:
    loader = make_loader(folder, stop_every=3, dp_rank=0, dp_world_size=2)
    assert make_trainer(loader, tmp_path).num_examples(loader) == 3 * 4 * 2


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    loader = make_loader(folder)
    make_trainer(loader, tmp_path).train()
    checkpoint = tmp_path / "checkpoint-6"
    assert load_state(checkpoint) == load_state(checkpoint / "trainer_state.json")
    assert load_state(checkpoint) == loader.state_dict()


def test_predictions_may_be_of_the_same_batches(folder: str, tmp_path: Path) -> None:
    trainer = make_trainer(make_loader(folder), tmp_path, prediction_loss_only=True)
    trainer.predict(FromStart(make_loader(folder, stop_every=2)))
    assert trainer.model.evaluated == rows_of(make_loader(folder).take(2))


def test_the_state_at_the_start_is_that_before_the_first_batch(folder: str, tmp_path: Path) -> None:
    loader = make_loader(folder)
    trainer = make_trainer(loader, tmp_path)
    saved = trainer.state.stateful_callbacks["CloudloadCallback"]["attributes"]["loader"]
    assert saved == make_loader(folder).state_dict()
    trainer.train()
    assert trainer.model.trained == rows_of(make_loader(folder).take(6))


@pytest.mark.parametrize("is_named", [False, True])
def test_every_evaluation_reads_the_same_batches_and_leaves_training_alone(
    folder: str, tmp_path: Path, is_named: bool
) -> None:
    batches = FromStart(make_loader(folder, epochs=1, batch_size=8))
    eval_dataset = {"first": batches, "again": batches} if is_named else batches
    trainer = make_trainer(
        make_loader(folder),
        tmp_path,
        eval_dataset=eval_dataset,
        eval_strategy="steps",
        eval_steps=3,
    )
    trainer.train()
    once = rows_of(make_loader(folder, epochs=1, batch_size=8))
    assert trainer.model.evaluated == (4 if is_named else 2) * once
    assert trainer.model.trained == rows_of(make_loader(folder).take(6))


@pytest.mark.parametrize("all_stats", [False, True])
def test_what_was_read_is_logged(folder: str, tmp_path: Path, all_stats: bool) -> None:
    from cloudload.integrations.transformers import CloudloadTrainer

    loader = make_loader(folder)
    trainer_class = partial(CloudloadTrainer, all_stats=all_stats)
    trainer = make_trainer(loader, tmp_path, trainer_class=trainer_class)
    trainer.train()
    numbers = loader.stats().as_dict("cloudload/", brief=not all_stats)
    [*_, last] = [line for line in trainer.state.log_history if "loss" in line]
    assert {name for name in last if name.startswith("cloudload/")} == numbers.keys()
    assert all_stats or len(numbers) <= 10
    assert [line["cloudload/rows"] for line in trainer.state.log_history if "loss" in line] == [
        4,
        8,
        12,
        16,
        20,
        24,
    ]
