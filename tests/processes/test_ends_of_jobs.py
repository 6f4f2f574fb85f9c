"""Whatever ends a training job, the job terminates in seconds, reports the cause, leaves no
processes behind, and resumes exactly. The next start removes any files that it leaves.

A job of real processes, in a separate session, reads from S3 through a fault proxy. It is ended
while it reads batches, and while it waits for a store that has stopped responding.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload.testing import Leg, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.jobs import Job, start_job
from testkit.left_behind import left_overs, orphans
from testkit.loaders import make_loader, ranks
from testkit.patience import soon
from testkit.processes import children_of, command_of
from testkit.servers import BUCKET

SOON_S = 25.0
"""Seconds that a job may take to end: far more than any needs, and far less than any deadline."""


def end(job: Job) -> str:
    """Wait until a job and all its processes have ended, and return the job's stderr."""
    _, errors = job.process.communicate(timeout=SOON_S)
    assert soon(lambda: not job.family()), (
        f"processes are still running: {[command_of(pid) for pid in job.family()]}\n{errors}"
    )
    assert soon(lambda: not orphans(job.shared_memory))
    return errors


def has_part(cache: Path) -> bool:
    """Whether a partial file in the cache shows that a fetch is in progress."""
    return any(path.suffix == ".part" for path in left_overs(cache))


@pytest.fixture(scope="module")
def dataset(request: pytest.FixtureRequest) -> str:
    """The URL of a compressed dataset of 400 documents and 68 shards on S3."""
    request.getfixturevalue("s3_server")
    url = f"s3://{BUCKET}/ends-of-jobs-{uuid.uuid4().hex}"
    return write_mds(url, random_documents(3, 400), shard_bytes=800, compression="zstd")


@pytest.fixture
def data(dataset: str, s3_proxy: FaultProxy) -> str:
    """The dataset's URL, read through a proxy that has no faults yet."""
    s3_proxy.set_faults([])
    return dataset


Start = Callable[..., Job]


@pytest.fixture
def start(data: str, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a job. The jobs are killed after the test."""
    jobs: list[Job] = []

    def start(**options: Any) -> Job:
        jobs.append(start_job(data, tmp_path, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def rows_in(out: Path) -> dict[int, list[int]]:
    """Map the index of each delivered row to its token IDs. Repeated rows must be equal."""
    rows: dict[int, list[int]] = {}
    for line in (out / "rows.jsonl").read_text().splitlines():
        first, ids = json.loads(line)
        for place, row in enumerate(ids):
            assert rows.setdefault(first + place, row) == row
    return rows


def check_rows(job: Job, cache: Path) -> None:
    """Check that the rows of all jobs so far equal those of an uninterrupted run."""
    found = rows_in(job.out)
    assert sorted(found) == list(range(len(found)))

    settings: dict[str, Any] = {"seq_len": 32, "num_canonical_nodes": 4, "local": cache}
    expected, _ = run_leg(ranks(job.data, **settings), Leg(batches=len(found)))
    assert [found[row] for row in range(len(found))] == [list(row.input_ids) for row in expected]


def silence(proxy: FaultProxy) -> None:
    """Stall the responses for all shards after the first 60, which suffice for a few batches.

    A loader that fetches ahead over all documents (`EAGER`) then always waits for a response.
    """
    proxy.fail("GET .*shard", "stall", skip=60, at=200, seconds=60)


EAGER = {"predownload": 400}


ENDS = {
    "SIGKILL of the training process": (signal.SIGKILL, False),
    "SIGTERM of the training process": (signal.SIGTERM, False),
    "Ctrl-C": (signal.SIGINT, True),
    "SIGTERM of the whole group": (signal.SIGTERM, True),
}


@pytest.mark.parametrize(("way", "is_silent"), itertools.product(ENDS, [False, True]))
def test_a_job_that_is_ended_leaves_nothing_and_resumes_exactly(
    start: Start, s3_proxy: FaultProxy, tmp_path: Path, way: str, is_silent: bool
) -> None:
    number, goes_to_all = ENDS[way]
    if is_silent:
        silence(s3_proxy)
    job = start(settings=EAGER if is_silent else {})
    job.wait_for(5)
    if is_silent:
        assert soon(lambda: has_part(job.cache))
    (os.killpg if goes_to_all else os.kill)(job.process.pid, number)
    errors = end(job)
    assert job.process.returncode == -number, errors
    assert left_overs(job.cache) == []
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0), errors
    s3_proxy.set_faults([])
    again = start(batches=5)
    assert end(again) == ""
    check_rows(again, tmp_path / "other-cache")


@pytest.mark.parametrize(
    "start_method", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)]
)
def test_workers_that_were_not_forked_end_with_the_training_process_too(
    start: Start, start_method: str
) -> None:
    job = start(settings={"start_method": start_method})
    job.wait_for(3)
    os.kill(job.process.pid, signal.SIGKILL)
    end(job)
    assert left_overs(job.cache) == []


def test_a_group_that_is_killed_leaves_what_the_next_start_sweeps(
    start: Start, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    silence(s3_proxy)
    job = start(settings=EAGER)
    job.wait_for(5)
    assert soon(lambda: has_part(job.cache))
    os.killpg(job.process.pid, signal.SIGKILL)
    end(job)
    s3_proxy.set_faults([])
    again = start(batches=5)
    assert end(again) == ""
    assert left_overs(again.cache) == []
    check_rows(again, tmp_path / "other-cache")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_that_dies_ends_the_job_with_its_cause(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    job = start()
    job.wait_for(5)
    worker = job.workers().pop()
    os.kill(worker, number)
    errors = end(job)
    if number == signal.SIGTERM:  # a worker handles SIGTERM itself
        assert f"process {worker} was terminated by SIGTERM" in errors
    else:
        assert re.search(
            rf"WorkerError: a worker process failed: .*process {worker} was killed "
            rf"by {number.name}",
            errors,
        )
    assert "Resume from the last state" in errors
    assert ("ran out of memory" in errors) == (number == signal.SIGKILL)
    again = start(batches=5)
    assert end(again) == ""
    assert left_overs(again.cache) == []
    check_rows(again, tmp_path / "other-cache")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("transform", "cause"),
    [
        ("explode", "ValueError: this document is too much"),
        ("leave", "SystemExit: I have had enough"),
        ("swell", "MemoryError"),
    ],
)
def test_a_transform_that_fails_shows_its_cause_and_the_document(
    start: Start, transform: str, cause: str, workers: int
) -> None:
    job = start(settings={"transform": transform}, workers=workers, pause_s=0.0)
    errors = end(job)
    assert "failed on sample" in errors
    assert cause in errors
    assert f", in {transform}" in errors, "stderr must have the traceback of the transform"
    assert left_overs(job.cache) == []


def test_a_transform_that_crashes_is_a_worker_that_died(start: Start) -> None:
    errors = end(start(settings={"transform": "crash"}, pause_s=0.0))
    assert re.search(r"WorkerError: a worker process failed: .*was killed by SIGSEGV", errors)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_that_ends_without_close_leaves_nothing(start: Start, workers: int) -> None:
    job = start(batches=5, closes=False, workers=workers)
    assert end(job) == ""
    assert job.process.returncode == 0
    assert left_overs(job.cache) == []


@pytest.mark.parametrize("way", ["close", "break", "a new iterator", "with"])
def test_a_loop_that_is_left_while_the_store_is_silent_ends_its_workers(
    data: str, s3_proxy: FaultProxy, tmp_path: Path, way: str
) -> None:
    silence(s3_proxy)
    before = children_of(os.getpid())
    settings: dict[str, Any] = {"seq_len": 32, "batch_size": 2, "num_workers": 3, **EAGER}
    loader = make_loader(data, local=tmp_path / "cache", **settings)
    batches = iter(loader)
    next(batches)
    assert soon(lambda: bool(list((tmp_path / "cache").rglob("*.part"))))
    began = time.monotonic()
    if way == "close":
        loader.close()
    elif way == "with":
        with loader:
            pass
    elif way == "break":
        del batches
    else:
        batches = iter(loader)
        loader.close()
    assert soon(lambda: children_of(os.getpid()) <= before)
    assert time.monotonic() - began < SOON_S
    assert not [
        path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".lock", ".part")
    ]
