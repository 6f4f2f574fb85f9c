"""torch.distributed.checkpoint (DCP) in one process saves the state as one string at any position,
synchronously or asynchronously."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cloudload.provenance import load_state
from testkit.loaders import make_loader, rows_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    """Initialize a process group that contains only this process."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("saved_after", [0, 1, 5])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_resume_continues_with_the_next_batch(
    folder: str, tmp_path: Path, saved_after: int, is_async: bool
) -> None:
    import torch.distributed.checkpoint as dcp

    from cloudload.integrations.dcp import LoaderState

    loader = make_loader(folder, packing="best_fit")
    batches = iter(loader)
    rows = [row for _ in range(saved_after) for row in next(batches)["input_ids"].tolist()]
    if is_async:
        saved = dcp.async_save({"loader": LoaderState(loader)}, checkpoint_id=tmp_path / "saved")
        # a batch that is read during the save does not change the saved state
        next(batches)
        saved.result()  # type: ignore[union-attr]
    else:
        dcp.save({"loader": LoaderState(loader)}, checkpoint_id=tmp_path / "saved")
    # the new loader's state is a string of a different length than the saved one
    resumed = make_loader(folder, packing="best_fit")
    dcp.load({"loader": LoaderState(resumed)}, checkpoint_id=tmp_path / "saved")
    assert rows + rows_of(resumed.take(8 - saved_after)) == rows_of(
        make_loader(folder, packing="best_fit").take(8)
    )


def test_the_state_is_found_in_a_checkpoint(folder: str, tmp_path: Path) -> None:
    """The state may be stored beside a model and its optimizer, or nested as in torchtitan and
    Composer."""
    import torch.distributed.checkpoint as dcp

    from cloudload.integrations.dcp import LoaderState

    loader, model = make_loader(folder), torch.nn.Linear(3, 3)
    next(iter(loader))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    for number, part in enumerate(
        (LoaderState(loader), {"dataset_state": {"train": LoaderState(loader).state_dict()}})
    ):
        dcp.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "part": part},
            checkpoint_id=tmp_path / f"{number}",
        )
        assert load_state(tmp_path / f"{number}") == loader.state_dict()
    torch.save({"app": [LoaderState(loader).state_dict()]}, tmp_path / "whole.pt")
    assert load_state(tmp_path / "whole.pt") == loader.state_dict()
