"""A loader logs once why the training loop waits for batches, and what to change."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.loading.delivery.run_log import WaitLog
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.stats import DeliveryMeter
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader

_PATIENCE_S = 60


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("cloudload.loading.delivery.run_log.WINDOW_S", 1.0)
    monkeypatch.setattr("cloudload.loading.delivery.run_log.LOOK_EVERY_S", 0.05)
    caplog.set_level(logging.INFO, "cloudload.wait")


@pytest.fixture
def only_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore short waits: on a busy machine, the first documents may take 1 s to tokenize."""
    monkeypatch.setattr("cloudload.loading.delivery.run_log.WINDOW_S", 3.0)
    monkeypatch.setattr("cloudload.loading.delivery.run_log.MOST_SHARE", 0.8)


def read_until_logged(loader: CloudLoader, caplog: pytest.LogCaptureFixture) -> str:
    """Iterate without training until the loader logs why it waits, and return the message."""
    deadline = time.monotonic() + _PATIENCE_S
    with loader:
        for _ in loader:
            found = messages_of(caplog)
            if found or time.monotonic() > deadline:
                break
        for _ in loader.take(20):
            pass
    [message] = messages_of(caplog)
    return message


def messages_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "cloudload.wait"]


def sleep_a_little(sample: dict[str, Any]) -> str:
    time.sleep(0.01)
    return str(sample["text"])


@pytest.fixture
def documents(tmp_path: Path) -> str:
    return write_mds(tmp_path / "mds", random_documents(1, 4_000, max_words=300))


@pytest.mark.parametrize(
    ("num_workers", "words"),
    [
        (0, ("The training process (num_workers=0)", "use num_workers=1 or more")),
        (1, ("The worker", "use more workers (num_workers is 1; this process may use ")),
        (2, ("The 2 workers", "use more workers (num_workers is 2; this process may use ")),
    ],
)
def test_a_slow_transform(
    documents: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    num_workers: int,
    words: tuple[str, str],
) -> None:
    who, advice = words
    options: dict[str, Any] = {"num_workers": num_workers, "transform": sleep_a_little}
    loader = make_loader(documents, local=tmp_path / "cache", seq_len=512, **options)
    message = read_until_logged(loader, caplog)
    assert message.startswith("the training loop waited for batches ")
    assert re.search(rf"\. {re.escape(who)} spent \d+% running the transform", message), message
    assert (
        "The transform is slower than training, so make it faster, apply it once with "
    ) in message
    assert advice in message
    delivery = loader.stats().delivery
    spent = [delivery.read_s, delivery.tokenize_s, delivery.pack_s, delivery.idle_s]
    assert delivery.transform_s > max(spent)


def test_too_few_workers(documents: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = make_loader(
        documents, local=tmp_path / "cache", num_workers=1, seq_len=512, tokenizer_backend="hf"
    )
    message = read_until_logged(loader, caplog)
    assert "% tokenizing" in message.partition(",")[0]
    assert "Tokenization is slower than training, so use tokenizer_backend='fastokens', or use" in (
        message
    )
    assert message.endswith("or train on token IDs (cloudload export)")


@pytest.mark.usefixtures("only_long_waits")
def test_a_slow_store(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_mds(s3_url, random_documents(1, 400), shard_bytes=1_000)
    s3_proxy.fail("GET .*shard", "delay", seconds=0.1)
    options: dict[str, Any] = {"num_workers": 1, "predownload": 1, "download_threads": 1}
    message = read_until_logged(make_loader(data, local=tmp_path, **options), caplog)
    assert "% waiting for shards (0.0 MB/s downloaded)" in message
    assert "The store is slower than training, so use more download_threads (now 1), a larger" in (
        message
    )


@pytest.mark.usefixtures("only_long_waits")
def test_a_stall_of_one_shard(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_mds(s3_url, random_documents(1, 400), shard_bytes=20_000)
    options: dict[str, Any] = {"num_workers": 1, "predownload": 1, "shuffle": False}
    loader = make_loader(data, local=tmp_path, **options)
    with loader:
        for _ in loader.take(2):
            pass
        s3_proxy.fail("GET .*shard", "delay", seconds=4.0)
        message = read_until_logged(loader, caplog)
    assert "% waiting for shards (0.0 MB/s downloaded)" in message


def test_a_loop_that_is_slower_than_its_workers_finds_their_queues_full(
    documents: str, tmp_path: Path
) -> None:
    with make_loader(documents, local=tmp_path / "cache", num_workers=1) as loader:
        for number, _ in enumerate(loader.take(60)):
            time.sleep(0 if number < 2 else 0.04)
        delivery = loader.stats().delivery
        assert delivery.idle_s > delivery.tokenize_s + delivery.transform_s
        assert 0 < delivery.queue <= 1


def test_skipped_batches_are_no_wait(
    documents: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"seq_len": 512, "transform": sleep_a_little}
    with make_loader(documents, local=tmp_path / "cache", **options) as loader:
        began = loader.stats().delivery.stall_s
        while loader.stats().delivery.stall_s - began < 2.5:  # more than two windows of 1 s
            loader.skip(3)
            assert len(list(loader.take(1))) == 1
    assert not messages_of(caplog)


def wait_for_others(log: WaitLog, meter: DeliveryMeter, plan: WorkerPlan) -> None:
    for _ in range(3):
        log.look(meter, plan)
        meter.begin_wait()
        with meter.exchanging():
            time.sleep(0.6)
        meter.end_wait()
    log.look(meter, plan)


def test_a_late_rank_is_the_reason_of_the_others(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(folder, local=tmp_path, dp_rank=0, dp_world_size=2, batch_size=2) as loader:
        plan = loader.worker_plan()
    meter, log = DeliveryMeter(), WaitLog()
    wait_for_others(log, meter, plan)
    [message] = messages_of(caplog)
    assert message.startswith("rank 0: the training loop waited for batches ")
    assert (
        "s for other ranks while this rank's rows were ready. If the late rank's loader"
    ) in message


def test_a_rank_that_waited_for_others_still_says_why_it_is_late_itself(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(folder, local=tmp_path, batch_size=1) as loader:
        loader.set_world(1, 4, ranks_per_node=2)
        plan = loader.worker_plan()
    assert plan.share.index == 2
    meter, log = DeliveryMeter(), WaitLog()
    wait_for_others(log, meter, plan)
    assert not messages_of(caplog)
    for _ in range(4):
        meter.begin_wait()
        time.sleep(0.6)
        meter.end_wait()
        log.look(meter, plan)
    [message] = messages_of(caplog)
    assert message.startswith("rank 1: the training loop waited for batches ")
    assert "other ranks" not in message
