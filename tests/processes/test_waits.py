"""A loader that waits for a worker, another process, or another rank logs that cause."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.cache.cache_folder import dataset_folder, shard_path
from cloudload.system.file_locks import acquire
from cloudload.system.temp_files import lock_path, make_folder
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader
from testkit.patience import PATIENT
from testkit.processes import children_of
from testkit.stalls import ended_by, report_early
from testkit.torchrun import Corpus, Run, launch


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    report_early(monkeypatch)


class UntilThere:
    """A transform that waits until a file exists."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, sample: Any) -> str:
        while not self._path.exists():
            time.sleep(0.02)
        return str(sample["text"])


@pytest.mark.parametrize(("num_workers", "who"), [(0, ""), (1, "worker 0 (process ")])
def test_a_transform_that_hangs_is_named(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_workers: int, who: str
) -> None:
    key = tmp_path / "key"
    loader = make_loader(
        folder, num_workers=num_workers, transform=UntilThere(key), transform_id="waits"
    )
    with loader, ended_by(caplog, "running the transform on ", key.touch):
        next(iter(loader))
    [line, *_] = [text for text in caplog.messages if "running the transform" in text]
    assert f"s for a batch: {who}" in line
    assert f" documents of {folder}/shard." in line


def test_a_worker_that_is_stopped_is_named(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    others = children_of(os.getpid())
    with make_loader(folder, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        [worker] = children_of(os.getpid()) - others
        os.kill(worker, signal.SIGSTOP)
        with ended_by(
            caplog,
            f"worker 0 (process {worker}) is stopped (SIGSTOP)",
            lambda: os.kill(worker, signal.SIGCONT),
        ):
            for _ in range(100):
                next(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_another_process_downloads_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_workers: int
) -> None:
    data = write_mds(tmp_path / "mds", random_documents(5, 20), compression="zstd")
    cache = tmp_path / "cache"
    # spawn workers, because a forked worker would inherit the lock
    settings: dict[str, Any] = {"num_workers": num_workers, "start_method": "spawn"}
    with make_loader(data, local=cache, **settings) as loader:
        [dataset] = loader.worker_plan().recipe.corpus.datasets
        shard = shard_path(dataset_folder(cache, dataset), dataset.shards[0])
        make_folder(shard.parent)
        with ThreadPoolExecutor(1) as other:  # a thread never waits for its own lock
            held = other.submit(acquire, lock_path(shard), wait=False).result()
        assert held is not None
        what = f"waiting for another process on this node to download {data}/shard.00000.mds.zstd"
        with ended_by(caplog, what, held.release):
            next(iter(loader))


def test_of_two_workers_that_wait_for_each_other_the_download_is_named(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_mds(s3_url, random_documents(5, 20))
    s3_proxy.fail("GET .*shard", "reset")
    # there is only one shard, and both workers need it
    with (
        make_loader(data, local=tmp_path, num_workers=2, retry=PATIENT) as loader,
        ended_by(caplog, " failed: Connection", lambda: s3_proxy.set_faults([])),
    ):
        next(iter(loader))


def test_an_order_that_another_process_builds_is_named(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(folder, local=tmp_path) as loader:
        orders = loader.recipe.components[0].orders(tmp_path)
        path = orders._path(0)
        make_folder(path.parent)
        with ThreadPoolExecutor(1) as other:  # a thread never waits for its own lock
            held = other.submit(acquire, lock_path(path), wait=False).result()
        assert held is not None
        what = "waiting for another process on this node to build the order of epoch 0"
        with ended_by(caplog, what, held.release):
            next(iter(loader))


@pytest.mark.parametrize("skips", [False, True])
def test_skip_and_take_report_their_waits_too(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, skips: bool
) -> None:
    key = tmp_path / "key"
    loader = make_loader(folder, transform=UntilThere(key), transform_id="waits")
    with loader, ended_by(caplog, "s for a batch: running the transform", key.touch):
        loader.skip(2) if skips else list(loader.take(2))


@pytest.mark.parametrize(("ranks", "slow"), [(2, 1), (3, 0)])
def test_ranks_that_are_ready_say_that_another_is_late_and_the_late_one_says_why(
    tmp_path: Path, ranks: int, slow: int
) -> None:
    corpus = Corpus.write(tmp_path / "corpus")
    launch(corpus, tmp_path, 0, Run(ranks, 2, 0, 2), slow_rank=slow)
    for rank in range(ranks):
        log = (tmp_path / f"log-{rank}.txt").read_text()
        assert f"rank {rank} waited " in log
        is_late = "running the transform on " in log
        assert is_late == (rank == slow)
        says_so = "waiting for another rank. The rows of this rank are ready" in log
        assert says_so == (rank != slow)
