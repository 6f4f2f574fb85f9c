"""A loader works in one process as a torchdata node, and in a StatefulDataLoader."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudload import CloudLoader
from cloudload.errors import WorkerError
from cloudload.provenance import load_state
from testkit.loaders import make_loader, rows_of
from tests.frameworks.small import Rows

pytest.importorskip("torchdata")

import torchdata.nodes
from torchdata.stateful_dataloader import StatefulDataLoader

from cloudload.integrations.torchdata import CloudloadDataset, CloudloadNode

pytestmark = pytest.mark.filterwarnings("ignore")


def as_node(loader: CloudLoader) -> Any:
    return torchdata.nodes.Loader(CloudloadNode(loader))


def as_prefetched_node(loader: CloudLoader) -> Any:
    return torchdata.nodes.Loader(
        torchdata.nodes.Prefetcher(CloudloadNode(loader), prefetch_factor=2)
    )


def as_dataset(loader: CloudLoader) -> Any:
    return StatefulDataLoader(CloudloadDataset(loader), batch_size=None, num_workers=0)


WAYS = [as_node, as_prefetched_node, as_dataset]


def train(batches: Any, number: int) -> Rows:
    rows: Rows = []
    while number:
        for batch in batches:
            rows += batch["input_ids"].tolist()
            number -= 1
            if not number:
                return rows
    return rows


@pytest.mark.parametrize("wrap", WAYS)
@pytest.mark.parametrize("options", [{}, {"stop_every": 3}, {"stop_every": "epoch"}])
@pytest.mark.parametrize("saved_after", [0, 1, 3, 4])
def test_a_resume_continues_with_the_next_batch(
    folder: str, wrap: Callable[[CloudLoader], Any], options: dict[str, Any], saved_after: int
) -> None:
    batches = wrap(make_loader(folder, **options))
    before = train(batches, saved_after)
    buffer = io.BytesIO()
    torch.save(batches.state_dict(), buffer)
    buffer.seek(0)
    resumed = wrap(make_loader(folder, **options))
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert before + train(resumed, 8 - saved_after) == rows_of(make_loader(folder).take(8))


@pytest.mark.parametrize("wrap", WAYS)
def test_the_state_is_found_in_a_checkpoint(
    folder: str, tmp_path: Path, wrap: Callable[[CloudLoader], Any]
) -> None:
    batches = wrap(make_loader(folder))
    train(batches, 3)
    torch.save({"data": batches.state_dict()}, tmp_path / "checkpoint.pt")
    assert load_state(tmp_path / "checkpoint.pt")["rows"] == 12


def test_workers_of_torchdata_are_refused(folder: str) -> None:
    batches = StatefulDataLoader(
        CloudloadDataset(make_loader(folder)), batch_size=None, num_workers=1
    )
    with pytest.raises(
        ValueError, match=r"a DataLoader's workers cannot read a CloudLoader.*num_workers=0"
    ):
        next(iter(batches))


def test_a_reset_ends_a_thread_that_still_waits_for_a_batch(folder: str) -> None:
    waits, may_continue = threading.Event(), threading.Event()

    def wait_in_second_batch(sample: Any) -> str:
        if loader.rows:
            waits.set()
            may_continue.wait(60)
        return str(sample["text"])

    options = {"transform_id": "waits"}
    loader = make_loader(folder, transform=wait_in_second_batch, **options)
    node = CloudloadNode(loader)
    node.reset()
    start = node.get_state()
    found = [next(node)]
    with ThreadPoolExecutor(1) as prefetcher:
        ahead = prefetcher.submit(node.next)
        assert waits.wait(60)
        threading.Timer(1, may_continue.set).start()
        node.reset(start)
        with pytest.raises(WorkerError, match="the loader was closed"):
            ahead.result()
    found += [next(node) for _ in range(3)]
    expected = rows_of(make_loader(folder, transform=get_text, **options).take(3))
    assert rows_of(found[1:]) == expected
    assert rows_of(found[:1]) == expected[:4]


def get_text(sample: Any) -> str:
    return str(sample["text"])
