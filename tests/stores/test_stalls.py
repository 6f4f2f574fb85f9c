"""A loader that waits for a store logs the object's URL, and counts the wait while it lasts."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Retry
from cloudload.data.storage.locations import Location
from cloudload.tools.convert.input_files import InputFile, read_decompressed
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.faulty_store import FaultyStore
from testkit.loaders import make_loader
from testkit.patience import PATIENT, soon
from testkit.stalls import ended_by, report_early

LONG = Retry(timeout_s=30.0, deadline_s=60.0, pause_s=0.05)
BRIEF_ATTEMPTS = Retry(timeout_s=2.0, deadline_s=60.0, pause_s=0.05)


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    report_early(monkeypatch)


def loader_of(url: str, cache: Path, **settings: Any) -> CloudLoader:
    defaults = {"seq_len": 64, "num_lanes": 8, "batch_size": 8, "retry": LONG}
    return make_loader(url, local=cache, **{**defaults, **settings})


def write(url: str, compression: str = "zstd") -> None:
    write_mds(url, random_documents(12, 200), shard_bytes=4_000, compression=compression)


@pytest.mark.parametrize("compression", ["zstd", "parquet"])
@pytest.mark.parametrize("action", ["drop", "stall"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_frozen_store_is_a_warning_that_names_the_shard(
    faulty: FaultyStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    num_workers: int,
    action: str,
    compression: str,
) -> None:
    write(faulty.url, compression)
    with (
        loader_of(faulty.url, tmp_path, num_workers=num_workers, retry=BRIEF_ATTEMPTS) as loader,
        ended_by(caplog, " failed: ", lambda: faulty.proxy.set_faults([])),
    ):
        faulty.fail("GET .*shard.0000[3-9]", action, seconds=60, at=10)
        list(loader.take(12))
    [line, *_] = [text for text in caplog.messages if "downloading" in text]
    assert ("s for a batch: worker " in line) == (num_workers > 0)
    assert f"downloading {faulty.url}/shard.0000" in line
    [line, *_] = [text for text in caplog.messages if " failed: " in text]
    numbers = re.search(r"\(attempt (\d+); attempt (\d+) failed: ", line)
    assert numbers is not None
    assert int(numbers[1]) == int(numbers[2]) + 1
    assert "time" in line.lower(), "the line must have the last error"
    assert re.search(r"gives up in \d+ s \(Retry\.deadline_s\)\)$", line)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stall_runs_while_a_batch_is_awaited(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, num_workers: int, caplog: Any
) -> None:
    write(s3_url)
    s3_proxy.fail("GET .*shard", "drop", seconds=60)
    seen: list[float] = []
    with loader_of(s3_url, tmp_path, num_workers=num_workers, retry=PATIENT) as loader:

        def look() -> None:
            for _ in range(3):
                soon(lambda: loader.stats().delivery.stall_s > max(seen, default=0.0))
                seen.append(loader.stats().delivery.stall_s)
            s3_proxy.set_faults([])

        with ended_by(caplog, "s for a batch: ", look):
            next(iter(loader))
        assert 0.0 < seen[0] < seen[1] < seen[2] <= loader.stats().delivery.stall_s
        after = loader.stats().delivery.stall_s
        assert loader.stats().delivery.stall_s == after, (
            "stall_s must not grow once no batch is awaited"
        )


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("times", [1, 4])
def test_retries_are_counted_in_the_statistics(
    faulty: FaultyStore, tmp_path: Path, num_workers: int, times: int
) -> None:
    write(faulty.url)
    faulty.fail("GET .*shard", "status", times=times)
    with loader_of(faulty.url, tmp_path, num_workers=num_workers) as loader:
        for _ in loader:
            if loader.stats().rows > 2_000:
                break
        delivery = loader.stats().delivery
    assert delivery.retries == times
    assert loader.stats().as_dict()["delivery/retries"] == times


@pytest.mark.parametrize("num_workers", [0, 2])
def test_retries_are_counted_while_a_batch_is_awaited(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, num_workers: int
) -> None:
    write(s3_url)
    s3_proxy.fail("GET .*shard", "reset")
    settings: dict[str, Any] = {"num_workers": num_workers, "retry": PATIENT}
    with loader_of(s3_url, tmp_path, **settings) as loader, ThreadPoolExecutor() as pool:
        batch = pool.submit(next, iter(loader))
        assert soon(lambda: loader.stats().delivery.retries >= 1)
        seen = loader.stats().delivery.retries
        assert soon(lambda: loader.stats().delivery.retries > seen)
        assert not batch.done()
        s3_proxy.set_faults([])
        batch.result()
        loader.load_state_dict(loader.state_dict())  # stops the workers
        after = loader.stats().delivery.retries
        assert after > seen
        next(iter(loader))
        assert loader.stats().delivery.retries == after, "new workers must not reset the count"


def test_a_store_that_refuses_in_the_middle_of_a_run_is_named(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(s3_url)
    s3_proxy.fail("GET .*shard", "reset")
    with (
        loader_of(s3_url, tmp_path, num_workers=2) as loader,
        ended_by(caplog, " failed: Connection", lambda: s3_proxy.set_faults([])),
    ):
        next(iter(loader))


def test_the_converter_says_that_an_input_has_stopped(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    source, data = f"{faulty.url}/raw.txt", os.urandom(300_000)
    Location(source).write(data)
    faulty.fail("GET .*raw", "stall", times=1, at=100_000, seconds=3)
    file = InputFile(source, "raw.txt", len(data), "text", None)
    with ended_by(caplog, f"s for data: reading {source}", lambda: None):
        assert b"".join(read_decompressed(file)) == data


def test_a_trace_of_a_frozen_store_is_a_warning_too(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(s3_url)
    with loader_of(s3_url, tmp_path / "one", num_workers=0) as loader:
        batch = next(iter(loader))
    s3_proxy.fail("GET .*shard", "drop", seconds=60)
    with (
        loader_of(s3_url, tmp_path / "other", num_workers=0, retry=PATIENT) as other,
        ended_by(caplog, "s for a shard: downloading ", lambda: s3_proxy.set_faults([])),
    ):
        other.trace(batch, 0)
