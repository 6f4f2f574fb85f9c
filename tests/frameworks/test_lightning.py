"""Lightning in one process saves a state without the batches that it prefetched, and its epochs
are the loader's passes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cloudload import CloudLoader
from cloudload.errors import StreamChangedError
from cloudload.provenance import load_state
from testkit.counted import count
from testkit.loaders import make_loader, rows_of

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
]


def fit(loader: CloudLoader, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Train on a loader with `lightning_fits.fit`."""
    from tests.frameworks import lightning_fits

    return lightning_fits.fit(loader, folder, **options)


@pytest.mark.parametrize("options", [{}, {"stop_every": 3}, {"stop_every": "epoch"}])
@pytest.mark.parametrize(
    "settings", [{}, {"accumulate_grad_batches": 2}, {"limit_train_batches": 4}]
)
@pytest.mark.parametrize("saved_after", [1, 2, 3, 6])
def test_whatever_is_prefetched_a_resume_continues_with_the_next_batch(
    folder: str, tmp_path: Path, options: dict[str, Any], settings: dict[str, Any], saved_after: int
) -> None:
    each = settings.get("accumulate_grad_batches", 1)
    whole, _ = fit(
        make_loader(folder, **options), tmp_path, max_steps=8, save_every=saved_after, **settings
    )
    checkpoint = tmp_path / f"step={saved_after}.ckpt"
    resumed, trainer = fit(
        make_loader(folder, **options), tmp_path, max_steps=8, ckpt_path=checkpoint, **settings
    )
    assert trainer.global_step == 8
    if settings != {"accumulate_grad_batches": 2} or not options:
        # if a pass ends during gradient accumulation, Lightning takes a step early
        assert whole.trained == rows_of(make_loader(folder).take(8 * each))
    assert whole.trained[-len(resumed.trained) :] == resumed.trained
    own = checkpoint_rows(checkpoint)
    assert len(whole.trained) - len(resumed.trained) == own


def checkpoint_rows(checkpoint: Path) -> int:
    """Return the number of rows delivered, according to the state in a checkpoint."""
    saved = torch.load(checkpoint, weights_only=False)["CloudloadDataModule"]
    return int(saved["rows"])


def test_epochs_end_where_passes_end_and_a_resume_at_their_end_begins_the_next(
    folder: str, tmp_path: Path
) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    callbacks = [
        ModelCheckpoint(
            tmp_path,
            filename="{epoch}",
            every_n_epochs=1,
            save_top_k=-1,
            save_on_train_epoch_end=True,
        )
    ]
    whole, trainer = fit(
        make_loader(folder, stop_every=3), tmp_path, max_epochs=3, callbacks=callbacks
    )
    assert (trainer.global_step, trainer.current_epoch) == (9, 3)
    assert whole.trained == rows_of(make_loader(folder).take(9))
    resumed, trainer = fit(
        make_loader(folder, stop_every=3),
        tmp_path,
        max_epochs=3,
        ckpt_path=tmp_path / "epoch=1.ckpt",
    )
    assert (trainer.global_step, trainer.current_epoch) == (9, 3)
    assert resumed.trained == whole.trained[-12:]


def test_epochs_of_the_data_reach_lightning_though_no_length_is_known(
    folder: str, tmp_path: Path
) -> None:
    loader = make_loader(folder, stop_every="epoch", epochs=2)
    whole, trainer = fit(loader, tmp_path, max_epochs=2)
    assert trainer.current_epoch == 2
    assert whole.trained == rows_of(make_loader(folder, epochs=2))


def test_with_lengths_lightnings_epochs_are_epochs_of_the_data(folder: str, tmp_path: Path) -> None:
    count(folder, out=tmp_path / "out")
    options = {"lengths": str(tmp_path / "out")}
    steps = make_loader(folder, **options).count_batches()
    assert steps == len(list(make_loader(folder, epochs=1)))
    expected = rows_of(make_loader(folder).take(3 * steps))
    whole, trainer = fit(
        make_loader(folder, stop_every=steps, **options),
        tmp_path,
        max_epochs=3,
        save_every=steps + 2,
    )
    assert (trainer.current_epoch, trainer.global_step) == (3, 3 * steps)
    assert trainer.num_training_batches == steps
    assert whole.trained == expected
    resumed, trainer = fit(
        make_loader(folder, stop_every=steps, **options),
        tmp_path,
        max_epochs=3,
        ckpt_path=tmp_path / f"step={steps + 2}.ckpt",
    )
    assert (trainer.current_epoch, trainer.global_step) == (3, 3 * steps)
    assert resumed.trained == expected[4 * (steps + 2) :]


def test_a_state_saved_before_the_first_batch_starts_at_the_first(
    folder: str, tmp_path: Path
) -> None:
    from lightning.pytorch.callbacks import Callback

    class Early(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "first.ckpt")

    whole, _ = fit(make_loader(folder), tmp_path, max_steps=3, callbacks=[Early()])
    resumed, _ = fit(make_loader(folder), tmp_path, max_steps=3, ckpt_path=tmp_path / "first.ckpt")
    assert resumed.trained == whole.trained == rows_of(make_loader(folder).take(3))


@pytest.mark.parametrize("options", [{}, {"stop_every": 5}, {"stop_every": "epoch"}])
def test_a_second_fit_continues_with_the_next_batch(
    folder: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    from cloudload.integrations.lightning import CloudloadDataModule
    from tests.frameworks.lightning_fits import Module, make_trainer

    module, loaders = Module(), CloudloadDataModule(make_loader(folder, **options))
    for max_steps in (3, 6, 9, 12, 15):
        make_trainer(tmp_path, max_steps=3).fit(module, datamodule=loaders)
        assert loaders.state_dict()["rows"] == 4 * max_steps
    assert module.model.trained == rows_of(make_loader(folder).take(15))


def test_a_batch_that_failed_is_trained_on_after_a_resume(folder: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import Callback

    from cloudload.integrations.lightning import CloudloadDataModule
    from tests.frameworks.lightning_fits import Module, make_trainer

    class Failing(Module):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            if batch_idx == 4:
                raise RuntimeError("a failure")
            return super().training_step(batch, batch_idx)

    class SaveOnException(Callback):
        def on_exception(self, trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "failed.ckpt")

    trainer = make_trainer(tmp_path, max_steps=8, callbacks=[SaveOnException()])
    with pytest.raises(RuntimeError, match="a failure"):
        trainer.fit(Failing(), datamodule=CloudloadDataModule(make_loader(folder)))
    resumed, _ = fit(make_loader(folder), tmp_path, max_steps=8, ckpt_path=tmp_path / "failed.ckpt")
    assert resumed.trained == rows_of(make_loader(folder).take(8))[16:]


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    fit(make_loader(folder), tmp_path, max_steps=2, save_every=2)
    resumed = make_loader(folder)
    resumed.load_state_dict(load_state(tmp_path / "step=2.ckpt"))
    assert rows_of(resumed.take(2)) == rows_of(make_loader(folder).take(4))[8:]


def test_training_ends_with_the_data(folder: str, tmp_path: Path) -> None:
    whole = rows_of(make_loader(folder, epochs=1))
    for options in ({"max_steps": 1000}, {"max_epochs": 3}):
        model, trainer = fit(make_loader(folder, epochs=1), tmp_path, **options)
        assert model.trained == whole
        assert trainer.current_epoch == 1


def test_a_checkpoint_without_the_loader_is_refused(folder: str, tmp_path: Path) -> None:
    from cloudload.integrations.lightning import CloudloadDataModule
    from tests.frameworks.lightning_fits import Module, make_trainer

    class Other(CloudloadDataModule):
        pass

    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.fit(Module(), datamodule=Other(make_loader(folder)))
    trainer.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(StreamChangedError, match=r"other.ckpt has no CloudloadDataModule state"):
        fit(make_loader(folder), tmp_path, max_steps=4, ckpt_path=tmp_path / "other.ckpt")


def test_a_loader_without_the_data_module_is_refused(folder: str, tmp_path: Path) -> None:
    from tests.frameworks.lightning_fits import Module, make_trainer

    trainer = make_trainer(tmp_path, max_steps=2)
    with pytest.raises(
        ValueError, match=r"lose or repeat batches. Pass datamodule=CloudloadDataModule\(loader\)"
    ):
        trainer.fit(Module(), train_dataloaders=make_loader(folder))


def test_every_validation_reads_the_same_batches_and_leaves_training_alone(
    folder: str, tmp_path: Path
) -> None:
    eval_loader = make_loader(folder, epochs=1, batch_size=8)
    settings = {"val_check_interval": 2, "check_val_every_n_epoch": None, "num_sanity_val_steps": 1}
    model, _ = fit(
        make_loader(folder),
        tmp_path,
        max_steps=4,
        eval_loader=eval_loader,
        save_every=3,
        **settings,
    )
    once = rows_of(make_loader(folder, epochs=1, batch_size=8))
    assert model.evaluated == once[:8] + 2 * once
    assert model.trained == rows_of(make_loader(folder).take(4))
    resumed, _ = fit(make_loader(folder), tmp_path, max_steps=4, ckpt_path=tmp_path / "step=3.ckpt")
    assert resumed.trained == model.trained[-4:]


@pytest.mark.parametrize("all_stats", [False, True])
def test_what_was_read_is_logged(folder: str, tmp_path: Path, all_stats: bool) -> None:
    from lightning.pytorch.loggers import CSVLogger

    from cloudload.integrations.lightning import CloudloadMonitor

    loader = make_loader(folder)
    logger = CSVLogger(tmp_path)
    fit(
        loader,
        tmp_path,
        max_steps=4,
        callbacks=[CloudloadMonitor(loader, all_stats=all_stats)],
        logger=logger,
        log_every_n_steps=2,
    )
    head, first, *_ = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    logged = {name for name in head.split(",") if name.startswith("cloudload/")}
    assert logged == loader.stats().as_dict("cloudload/", brief=not all_stats).keys()
    assert all_stats or len(logged) <= 10
    # at step 2, three batches are counted, because Lightning reads one batch ahead
    assert dict(zip(head.split(","), first.split(","), strict=True))["cloudload/tokens"] == str(
        3 * 4 * 16
    )
