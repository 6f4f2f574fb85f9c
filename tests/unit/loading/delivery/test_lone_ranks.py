"""A process that would read all data alone is told of the others, and a wait for ranks is quiet."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from cloudload.config import DeliveryConfig
from cloudload.errors import RanksDisagreeError
from cloudload.loading import preparation
from cloudload.loading.delivery.all_gather import _name_missing, wait_for_all
from cloudload.loading.delivery.world import LoneEnvironment
from testkit.corpora import write_mds
from testkit.loaders import make_loader

LAUNCHERS = {
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMI_SIZE": "2",
}


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation._warn_once.cache_clear()
    for name in (*LAUNCHERS, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def warnings_of(data: str, caplog: pytest.LogCaptureFixture, **settings: int) -> list[str]:
    """The warnings of a loader about its world, while it reads two batches."""
    with caplog.at_level(logging.WARNING), make_loader(data, **settings) as loader:
        batches = iter(loader)
        next(batches), next(batches)
    return [each for each in caplog.messages if "world size" in each]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_with_several_processes_but_a_world_of_one_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    data = write_mds(tmp_path / "data", ["one two three"] * 200)
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(name, "2")
    [warning] = warnings_of(data, caplog)
    assert warning.startswith(f"{name} is 2, but the world size is 1, so each process")
    assert "call init_process_group before iterating" in warning


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({}, {}),
        ({"SLURM_NTASKS": "1"}, {}),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({"SLURM_NTASKS": "2", "WORLD_SIZE": "1", "RANK": "0"}, {}),
        ({"SLURM_NTASKS": "2"}, {"dp_rank": 0, "dp_world_size": 1}),
        ({"SLURM_NTASKS": "2(x3)"}, {}),
    ],
)
def test_a_world_that_is_given_or_right_is_no_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    settings: dict[str, int],
) -> None:
    data = write_mds(tmp_path / "data", ["one two three"] * 200)
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path / "cache"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert warnings_of(data, caplog, **settings) == []


def test_a_tool_reads_without_the_other_ranks_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a job of two processes, a loader of a tool must not wait for the other process."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    delivery = DeliveryConfig(batch_size=1, dp_rank=3, dp_world_size=8)
    assert LoneEnvironment().open_exchange(delivery).is_alone


@pytest.fixture
def store() -> dist.Store:
    timeout = timedelta(seconds=20)
    return dist.TCPStore("127.0.0.1", 0, 1, True, timeout, wait_for_workers=False)


def test_a_wait_for_a_late_rank_prints_nothing(
    store: dist.Store, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RanksDisagreeError, match=re.escape("process 1 (of 0 to 1) did not start")):
        wait_for_all(store, 0, 2, 0.5)
    assert capfd.readouterr() == ("", "")


def test_a_rank_that_arrives_while_it_is_named_leaves_no_empty_list(store: dist.Store) -> None:
    for rank in range(3):
        store.set(f"here/{rank}", "")
    assert _name_missing(store, 3) == "the last process (of 0 to 2)"
    store.delete_key("here/1")
    store.add("arrived", 2)
    assert _name_missing(store, 3) == "process 1 (of 0 to 2)"
