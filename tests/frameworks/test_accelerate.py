"""Accelerate saves and restores a registered loader, and `prepare` returns a loader unchanged. A
loader wrapped in a DataLoader is refused."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cloudload import FromStart
from cloudload.provenance import load_state
from testkit.loaders import make_loader, rows_of
from testkit.warm_start import stand_in
from tests.frameworks.small import Model, Rows

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]


def make_accelerator(**options: Any) -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True, **options)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("saved_after", [0, 1, 3, 4])
def test_a_registered_loader_continues_with_the_next_batch(
    folder: str, tmp_path: Path, saved_after: int, is_prepared: bool
) -> None:
    """A checkpoint may be saved before the first batch or during gradient accumulation."""
    trained = []
    for is_resumed in (False, True):
        accelerator = make_accelerator(gradient_accumulation_steps=2)
        module = Model()
        model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        loader = make_loader(folder)
        if is_prepared:
            loader = accelerator.prepare(loader)
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
    assert trained[0] == rows_of(make_loader(folder).take(6))
    assert trained[1] == trained[0][4 * saved_after :]


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    accelerator, loader, model = make_accelerator(), make_loader(folder), Model()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1)
    accelerator.register_for_checkpointing(schedule, loader)
    next(iter(loader))
    accelerator.save_state(str(tmp_path / "saved"))
    assert load_state(tmp_path / "saved") == loader.state_dict()
    assert load_state(tmp_path / "saved" / "custom_checkpoint_1.pkl") == loader.state_dict()


@pytest.mark.parametrize(
    "settings", [{}, {"dispatch_batches": True}, {"split_batches": True}, {"even_batches": False}]
)
def test_prepare_hands_back_the_loader_itself(folder: str, settings: dict[str, Any]) -> None:
    from accelerate import DataLoaderConfiguration

    module, loader = Model(), make_loader(folder)
    evaluation = FromStart(make_loader(folder, epochs=1))
    accelerator = make_accelerator(dataloader_config=DataLoaderConfiguration(**settings))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    prepared = accelerator.prepare(module, optimizer, loader, evaluation)
    assert prepared[2] is loader
    assert prepared[3] is evaluation
    assert rows_of(loader.take(3)) == rows_of(make_loader(folder).take(3))


def test_prepared_loaders_of_two_ranks_read_the_rows_of_one(folder: str, tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    command = [*stand_in(), "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--no-python", *stand_in(), "testkit.warm_script", str(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, folder, str(tmp_path)], env=environment, check=True, timeout=300)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    together = [row for step in zip(*ranks, strict=True) for row in interleave(*step)]
    assert together == rows_of(make_loader(folder, batch_size=8).take(3))


def interleave(*batches: Rows) -> Rows:
    """Interleave the rows of all ranks into the rows of the global batch."""
    return [row for rows in zip(*batches, strict=True) for row in rows]


RANKS = """
import json
import sys
from pathlib import Path

from accelerate import Accelerator

from testkit.loaders import make_loader

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(make_loader(sys.argv[1]))
rows = [batch["input_ids"].tolist() for batch in loader.take(3)]
Path(sys.argv[2], f"{accelerator.process_index}.json").write_text(json.dumps(rows))
accelerator.end_training()
"""


def test_a_loader_wrapped_in_a_dataloader_is_refused(folder: str) -> None:
    wrapped = make_accelerator().prepare(
        torch.utils.data.DataLoader(cast(Any, make_loader(folder)), batch_size=None)
    )
    with pytest.raises(TypeError, match="do not wrap it in a DataLoader"):
        next(iter(wrapped))


def test_preparing_a_loader_as_a_dataloader_is_refused(folder: str) -> None:
    accelerator, loader = make_accelerator(), make_loader(folder, epochs=1)
    for each in (loader, FromStart(loader)):
        with pytest.raises(
            AttributeError, match=r"save its state with accelerator\.register_for_checkp"
        ):
            accelerator.prepare_data_loader(cast(Any, each))
        assert not hasattr(each, "dataset")
