"""Composer in one process counts samples, splits batches, and saves and restores the loader. Runs
only if Composer is installed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cloudload import CloudLoader
from cloudload.errors import StreamChangedError
from cloudload.provenance import load_state
from testkit import ROOT
from testkit.counted import count
from testkit.loaders import SEQ_LEN, make_loader, rows_of
from tests.frameworks.small import Model

pytest.importorskip("composer")

import composer
from composer import Time, Trainer
from composer.loggers import InMemoryLogger

from cloudload.integrations.composer import (
    CloudloadLosses,
    CloudloadMonitor,
    data_spec,
    eval_spec,
    split_batch,
)
from cloudload.losses import LossLog, read_losses

pytestmark = pytest.mark.filterwarnings("ignore")


class ComposerModel(composer.ComposerModel):
    """The small model with Composer's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.trained, self.evaluated = self.model.trained, self.model.evaluated

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.model(batch["input_ids"], batch["labels"])["loss"]
        return loss

    def loss(self, outputs: Tensor, batch: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
        return outputs

    def eval_forward(self, batch: dict[str, Tensor], outputs: Any = None) -> Tensor:
        return self.forward(batch)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {}


def make_trainer(loader: CloudLoader, **options: Any) -> Trainer:
    model = ComposerModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    defaults = {
        "train_dataloader": data_spec(loader),
        "max_duration": "6ba",
        "device": "cpu",
        "progress_bar": False,
    }
    return Trainer(model=model, optimizers=optimizer, **{**defaults, **options})


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


# ---------------------------------------------------------------- counting


def test_samples_are_rows_and_tokens_are_those_of_documents(folder: str) -> None:
    loader = make_loader(folder, packing="one_per_row", epochs=1)
    trainer = make_trainer(loader, max_duration="1ep")
    trainer.fit()
    stats = loader.stats()
    assert 0 < stats.tokens < SEQ_LEN * stats.rows
    assert trainer.state.timestamp.token == stats.tokens
    assert trainer.state.timestamp.sample == stats.rows


def test_a_duration_in_tokens_ends_with_the_batch_that_reaches_it(folder: str) -> None:
    trainer = make_trainer(make_loader(folder), max_duration=f"{10 * SEQ_LEN}tok")
    trainer.fit()
    assert trainer.state.timestamp.batch == 3


def test_a_duration_in_epochs_goes_by_stop_every(folder: str) -> None:
    loader = make_loader(folder, stop_every=4)
    trainer = make_trainer(loader, max_duration="3ep")
    trainer.fit()
    assert (trainer.state.timestamp.batch, trainer.state.timestamp.epoch) == (12, 3)
    assert trainer.state.model.trained == rows_of(make_loader(folder).take(12))


def test_with_lengths_composers_epochs_are_epochs_of_the_data(folder: str, tmp_path: Path) -> None:
    count(folder, out=tmp_path / "out")
    options = {"lengths": str(tmp_path / "out")}
    steps = make_loader(folder, **options).count_batches()
    assert steps == len(list(make_loader(folder, epochs=1)))
    expected = rows_of(make_loader(folder).take(3 * steps))
    settings = {"max_duration": "3ep", "save_interval": f"{steps + 2}ba"}
    loader = make_loader(folder, stop_every=steps, **options)
    trainer = make_trainer(loader, save_folder=str(tmp_path), **settings)
    trainer.fit()
    assert trainer.state.dataloader_len == steps
    assert (trainer.state.timestamp.epoch, trainer.state.timestamp.batch) == (3, 3 * steps)
    assert trainer.state.model.trained == expected
    again = make_trainer(
        make_loader(folder, stop_every=steps, **options),
        load_path=str(tmp_path / f"ep1-ba{steps + 2}-rank0.pt"),
        **settings,
    )
    again.fit()
    assert (again.state.timestamp.epoch, again.state.timestamp.batch) == (3, 3 * steps)
    assert again.state.model.trained == expected[4 * (steps + 2) :]


def test_microbatches_have_the_segments_of_their_own_rows(folder: str) -> None:
    fields = ["segment_ids", "cu_seqlens", "flash_attention"]
    for batch in make_loader(folder, packing="best_fit", fields=fields, batch_size=5, epochs=1):
        for size in (1, 2, 5, 8):
            microbatches = split_batch(batch, size)
            assert [len(each["input_ids"]) for each in microbatches] == [
                min(size, 5 - start) for start in range(0, 5, size)
            ]
            for name in ("input_ids", "labels", "position_ids", "segment_ids", "seq_idx"):
                assert torch.equal(torch.cat([each[name] for each in microbatches]), batch[name])
            for each in microbatches:
                assert each["cu_seqlens"][0] == 0
                assert each["cu_seqlens"][-1] == each["input_ids"].numel()
                assert each["cu_seqlens"].dtype == torch.int32
                starts = each["position_ids"].flatten() == 0
                assert starts[each["cu_seqlens"][:-1].long()].all()
                assert each["max_seqlen"] == each["cu_seqlens"].diff().max()
                for axis in "qk":
                    assert torch.equal(each[f"cu_seq_lens_{axis}"], each["cu_seqlens"])
                    assert each[f"max_length_{axis}"] == each["max_seqlen"]
                    assert type(each[f"max_length_{axis}"]) is int
            lengths = torch.cat([each["cu_seqlens"].diff() for each in microbatches])
            assert torch.equal(lengths, batch["cu_seqlens"].diff())


def test_micro_batches_of_the_loader_are_refused(folder: str) -> None:
    loader = make_loader(folder, batch_size=None, global_batch_size=8, micro_batch_size=2)
    with pytest.raises(ValueError, match=r"into 4 micro-batches, .* device_train_microbatch_size"):
        data_spec(loader)


def test_packed_microbatches_train_and_are_accumulated(folder: str) -> None:
    loader = make_loader(folder, packing="best_fit", fields=["cu_seqlens"])
    trainer = make_trainer(
        loader, device_train_microbatch_size=2, accumulate_train_batch_on_tokens=True
    )
    trainer.fit()
    assert trainer.state.model.trained == rows_of(make_loader(folder, packing="best_fit").take(6))


# ---------------------------------------------------------------- saving and resuming


@pytest.mark.parametrize(("saved_at", "epochs"), [("4ba", 1), ("1ep", 1), ("8ba", 2), ("6ba", 1)])
def test_epochs_are_counted_right_wherever_a_checkpoint_was_saved(
    folder: str, tmp_path: Path, saved_at: str, epochs: int
) -> None:
    """Composer counts an epoch only after its last batch, so a checkpoint saved right after that
    batch may still have the old count."""
    loader = make_loader(folder, stop_every=4)
    trainer = make_trainer(
        loader, max_duration="3ep", save_folder=str(tmp_path), save_interval=saved_at
    )
    trainer.fit()
    assert (trainer.state.timestamp.batch, trainer.state.timestamp.epoch) == (12, 3)
    number = Time.from_timestring(saved_at).value
    first = (
        f"ep{epochs}-ba4-rank0.pt"
        if saved_at == "1ep"
        else f"ep{(number - 1) // 4}-ba{number}-rank0.pt"
    )
    resumed = make_loader(folder, stop_every=4)
    again = make_trainer(resumed, max_duration="3ep", load_path=str(tmp_path / first))
    again.fit()
    assert (again.state.timestamp.batch, again.state.timestamp.epoch) == (12, 3)
    batches = 4 if saved_at == "1ep" else number
    assert again.state.model.trained == rows_of(make_loader(folder).take(12))[4 * batches :]
    assert again.state.timestamp.token == trainer.state.timestamp.token


def test_a_state_saved_before_the_first_batch_starts_at_the_first(
    folder: str, tmp_path: Path
) -> None:
    trainer = make_trainer(make_loader(folder))
    trainer.save_checkpoint(str(tmp_path / "first.pt"))
    resumed = make_trainer(make_loader(folder), load_path=str(tmp_path / "first.pt"))
    resumed.fit()
    assert resumed.state.model.trained == rows_of(make_loader(folder).take(6))


def test_autoresume_and_a_dataloader_given_to_fit(folder: str, tmp_path: Path) -> None:
    settings = {"save_folder": str(tmp_path), "save_interval": "2ba", "run_name": "a-run"}
    make_trainer(make_loader(folder), max_duration="4ba", **settings).fit()
    trainer = make_trainer(make_loader(folder), max_duration="6ba", autoresume=True, **settings)
    trainer.fit()
    assert trainer.state.model.trained == rows_of(make_loader(folder).take(6))[16:]
    other = make_trainer(
        make_loader(folder), train_dataloader=None, load_path=str(tmp_path / "ep0-ba4-rank0.pt")
    )
    other.fit(train_dataloader=data_spec(make_loader(folder)))
    assert other.state.model.trained == rows_of(make_loader(folder).take(6))[16:]


def test_a_state_is_loaded_without_unpickling_code(folder: str) -> None:
    trainer = make_trainer(make_loader(folder))
    trainer.fit()
    buffer = io.BytesIO()
    torch.save(trainer.state.state_dict()["dataset_state"], buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    loader = make_loader(folder)
    make_trainer(loader).state._load_dataset_state(saved)
    assert loader.rows == 24


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    loader = make_loader(folder)
    trainer = make_trainer(loader)
    trainer.fit()
    trainer.save_checkpoint(str(tmp_path / "last.pt"))
    assert load_state(tmp_path / "last.pt") == loader.state_dict()


def test_a_sharded_checkpoint_takes_the_state_as_one_leaf(folder: str, tmp_path: Path) -> None:
    """Composer's sharded checkpoints are DCP checkpoints that are loaded into the new run's state.
    This test calls DCP directly, because FSDP itself needs a GPU."""
    import torch.distributed.checkpoint as dcp

    trainer = make_trainer(make_loader(folder))
    trainer.fit()
    dcp.save(
        {"state": {"dataset_state": trainer.state.state_dict()["dataset_state"]}},
        checkpoint_id=tmp_path / "sharded",
    )
    assert load_state(tmp_path / "sharded") == trainer_loader_state(trainer)
    loader = make_loader(folder, num_lanes=12)
    fresh = make_trainer(loader)
    template = {"state": {"dataset_state": fresh.state.state_dict()["dataset_state"]}}
    dcp.load(template, checkpoint_id=tmp_path / "sharded")
    fresh.state._load_dataset_state(template["state"]["dataset_state"])
    assert loader.state_dict() == {
        **trainer_loader_state(trainer),
        "tokenizer_backend": loader.state_dict()["tokenizer_backend"],
    }


def trainer_loader_state(trainer: Trainer) -> dict[str, Any]:
    import json

    state: dict[str, Any] = json.loads(
        trainer.state.state_dict()["dataset_state"]["train"]["cloudload"]
    )["loader"]
    return state


@pytest.mark.parametrize("options", [{}, {"stop_every": 4}, {"stop_every": "epoch"}])
def test_a_second_fit_continues_with_the_next_batch(folder: str, options: dict[str, Any]) -> None:
    trainer = make_trainer(make_loader(folder, **options), max_duration="3ba")
    trainer.fit()
    trainer.fit(duration="3ba")
    trainer.fit(duration="20ba")
    assert trainer.state.model.trained == rows_of(make_loader(folder).take(26))


def test_training_ends_with_the_data_and_saves_its_end(folder: str, tmp_path: Path) -> None:
    whole = rows_of(make_loader(folder, epochs=1))
    settings = {"max_duration": "1000ba", "save_folder": str(tmp_path), "save_interval": "30ba"}
    trainer = make_trainer(make_loader(folder, epochs=1), **settings)
    trainer.fit()
    assert trainer.state.model.trained == whole
    assert trainer.state.timestamp.epoch == 1
    saved = sorted(tmp_path.glob("ep*.pt"), key=lambda path: int(path.stem.split("-")[1][2:]))
    for checkpoint in saved:
        resumed = make_trainer(
            make_loader(folder, epochs=1), max_duration="1000ba", load_path=str(checkpoint)
        )
        resumed.fit()
        assert resumed.state.timestamp.batch == trainer.state.timestamp.batch
        assert whole[len(whole) - len(resumed.state.model.trained) :] == resumed.state.model.trained
    assert saved[-1].name == f"ep1-ba{len(whole) // 4}-rank0.pt"


def test_a_checkpoint_without_the_loader_is_refused(folder: str, tmp_path: Path) -> None:
    trainer = make_trainer(make_loader(folder), train_dataloader=None)
    trainer.save_checkpoint(str(tmp_path / "other.pt"))
    with pytest.raises(
        StreamChangedError, match=r"not saved with data_spec\(loader\), because .* keys \[\]"
    ):
        make_trainer(make_loader(folder), load_path=str(tmp_path / "other.pt"))


def test_a_loader_without_a_data_spec_is_refused(folder: str) -> None:
    with pytest.raises(
        ValueError, match=r"lose or repeat batches. Pass data_spec\(loader\) or eval_spec"
    ):
        make_trainer(make_loader(folder), train_dataloader=make_loader(folder)).fit()
    trainer = make_trainer(
        make_loader(folder), eval_dataloader=make_loader(folder, stop_every=2), eval_interval="1ba"
    )
    with pytest.raises(ValueError, match="eval_spec"):
        trainer.fit()


# ---------------------------------------------------------------- evaluating and logging


def test_every_evaluation_reads_the_same_batches_and_leaves_training_alone(folder: str) -> None:
    evaluation = eval_spec(make_loader(folder, epochs=1, batch_size=8))
    trainer = make_trainer(make_loader(folder), eval_dataloader=evaluation, eval_interval="2ba")
    trainer.fit()
    once = rows_of(make_loader(folder, epochs=1, batch_size=8))
    assert trainer.state.model.evaluated == once * 3
    assert trainer.state.model.trained == rows_of(make_loader(folder).take(6))


def test_what_was_read_is_logged(folder: str) -> None:
    loader, memory = make_loader(folder), InMemoryLogger()
    make_trainer(loader, callbacks=[CloudloadMonitor(loader, every=2)], loggers=[memory]).fit()
    [(_, first), *_, (_, last)] = memory.data["cloudload/tokens"]
    assert (first, last) == (2 * 4 * SEQ_LEN, loader.stats().tokens)
    assert "cloudload/padding" not in memory.data


def test_all_statistics_are_logged_on_request(folder: str) -> None:
    loader, memory = make_loader(folder), InMemoryLogger()
    monitor = CloudloadMonitor(loader, every=2, all_stats=True)
    make_trainer(loader, callbacks=[monitor], loggers=[memory]).fit()
    assert memory.data.keys() >= loader.stats().as_dict("cloudload/").keys()


def test_the_lines_of_its_page_run(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/guides/frameworks/composer.md").read_text("utf-8")
    lines = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "loader": make_loader(folder),
        "eval_loader": make_loader(folder, epochs=1),
        "composer_model": ComposerModel(),
    }
    # train on 200 tokens, because the page's 100 million would take too long
    exec(lines.replace("100_000_000tok", "2_00tok"), given)
    assert given["trainer"].state.timestamp.token == 4 * 4 * SEQ_LEN
    assert given["composer_model"].trained == rows_of(make_loader(folder).take(4))


def test_losses_of_microbatches_are_those_of_their_documents(folder: str, tmp_path: Path) -> None:
    loader = make_loader(folder, local=tmp_path / "cache")
    memory = InMemoryLogger()
    find_losses = lambda state: state.batch["input_ids"][:, 1:].double()  # noqa: E731
    trainer = make_trainer(
        loader,
        device_train_microbatch_size=3,
        callbacks=[CloudloadLosses(LossLog(loader, tmp_path / "log"), find_losses, every=2)],
        loggers=[memory],
    )
    trainer.fit()
    [name] = loader.stream_names
    means = memory.data[f"cloudload/loss/{name}"]
    assert [int(timestamp.batch) for timestamp, _ in means] == [2, 4, 6]
    trainer.close()
    with make_loader(folder, local=tmp_path / "cache") as again, LossLog(again) as expected:
        for batch in again.take(6):
            expected.add(batch, batch["input_ids"][:, 1:].double())
        losses = read_losses(tmp_path / "log")
        assert losses.means() == expected.take_means()
    assert losses.steps == range(1, 7)
