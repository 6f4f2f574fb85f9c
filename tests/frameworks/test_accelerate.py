"""accelerate, in one process: a registered loader is saved and restored, and a wrapped one is
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cloudload.provenance import load_state
from tests.frameworks.small import Model, rows_of
from tests.support.loaders import make_loader

pytest.importorskip("accelerate")

from accelerate import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("saved_after", [0, 1, 3, 4])
def test_a_registered_loader_goes_on_with_the_next_batch(
    folder: str, tmp_path: Path, saved_after: int
) -> None:
    """Also where it was saved before the first batch, and in mid accumulation."""
    trained = []
    for is_resumed in (False, True):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        module = Model()
        model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        loader = make_loader(folder)
        accelerator.register_for_checkpointing(loader)
        if is_resumed:
            accelerator.load_state(str(tmp_path / "saved"))
        elif saved_after == 0:
            accelerator.save_state(str(tmp_path / "saved"))
        for number, batch in enumerate(loader.take(6 - saved_after * is_resumed), 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch.to(accelerator.device))["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if number == saved_after and not is_resumed:
                accelerator.save_state(str(tmp_path / "saved"))
        trained.append(module.trained)
    assert trained[0] == rows_of(make_loader(folder), 6)
    assert trained[1] == trained[0][4 * saved_after :]


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    accelerator, loader, model = Accelerator(cpu=True), make_loader(folder), Model()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1)
    accelerator.register_for_checkpointing(schedule, loader)
    next(iter(loader))
    accelerator.save_state(str(tmp_path / "saved"))
    assert load_state(tmp_path / "saved") == loader.state_dict()
    assert load_state(tmp_path / "saved" / "custom_checkpoint_1.pkl") == loader.state_dict()


def test_prepare_hands_back_the_loader_itself(folder: str) -> None:
    loader = make_loader(folder)
    assert Accelerator(cpu=True).prepare(loader) is loader


def test_a_loader_wrapped_in_a_dataloader_is_refused(folder: str) -> None:
    wrapped = Accelerator(cpu=True).prepare(
        torch.utils.data.DataLoader(cast(Any, make_loader(folder)), batch_size=None)
    )
    with pytest.raises(TypeError, match="do not wrap it in a DataLoader"):
        next(iter(wrapped))
