"""However a training job ends, it ends in seconds, says why, leaves nothing, and goes on from its last state exactly.

A job of real processes, in a session of its own, reads from S3 through a fault proxy; it is ended while it works, and while it
waits for a store that has fallen silent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from awkward import EOS, byte_tokenizer
from corpora import random_documents, write_mds
from fault_proxy import Fault, FaultProxy

from cloudload import CloudLoader
from cloudload.cache import sweep
from cloudload.testing import Leg, run_leg

ROOT = Path(__file__).resolve().parents[1]
TRAINER = Path(__file__).with_name("lone_trainer.py")
SOON_S = 25.0
"""Far more than any end takes, far less than any deadline."""


def _shared_memory() -> set[str]:
    """What Python and torch have named in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "psm_", "sem.", "mp-"))}


@dataclass
class Job:
    """A job that runs, and what it leaves."""

    data: str
    process: subprocess.Popen[str]
    cache: Path
    out: Path
    shared_memory: set[str] = field(default_factory=_shared_memory)

    def wait_for(self, step: int) -> None:
        """Until the job has taken that many steps."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == f"step {step}\n":
                return
        raise AssertionError(f"the job ended early: {self.process.communicate()[1]}")

    def family(self) -> set[int]:
        """The live processes of its session."""
        members = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    members.add(int(path.parent.name))
        return members

    def workers(self) -> set[int]:
        """Its worker processes."""
        return {pid for pid in self.family() - {self.process.pid} if b"resource_tracker" not in _command(pid)}

    def end(self) -> str:
        """Wait for its end, and for that of all its processes; returns what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=SOON_S)
        assert _soon(lambda: not self.family()), f"left: {[_command(pid) for pid in self.family()]}\n{errors}"
        assert _shared_memory() <= self.shared_memory
        return errors

    def left_overs(self) -> list[str]:
        """Files of its cache that are neither shards nor orders."""
        return [str(path) for path in self.cache.rglob("*") if path.suffix in (".lock", ".part", ".tmp")]


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def data(s3_url: str, s3_proxy: FaultProxy) -> str:
    """A dataset of a hundred shards on S3, behind the proxy."""
    s3_proxy.set_faults([])
    return write_mds(s3_url, random_documents(3, 400), shard_bytes=800, compression="zstd")


Start = Callable[..., Job]


@pytest.fixture
def start(data: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a job."""
    jobs: list[Job] = []

    def start(**options: Any) -> Job:
        cache, out = tmp_path / "cache", tmp_path / "out"
        out.mkdir(exist_ok=True)
        defaults = {"data": data, "cache": str(cache), "out": str(out), "workers": 2, "batches": 10_000, "pause_s": 0.05}
        process = subprocess.Popen(
            [sys.executable, str(TRAINER), json.dumps(defaults | options)],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        jobs.append(Job(data, process, cache, out))
        return jobs[-1]

    yield start
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.communicate()


def rows_in(out: Path) -> dict[int, list[int]]:
    """The rows that were handed out, by their number; a row that came twice came alike."""
    rows: dict[int, list[int]] = {}
    for line in (out / "rows.jsonl").read_text().splitlines():
        first, ids = json.loads(line)
        for place, row in enumerate(ids):
            assert rows.setdefault(first + place, row) == row
    return rows


def check_rows(job: Job, cache: Path) -> None:
    """The rows of all jobs so far are those of one that nothing happened to."""
    found = rows_in(job.out)
    assert sorted(found) == list(range(len(found)))

    def make_loader(**rank: Any) -> CloudLoader:
        return CloudLoader(job.data, tokenizer=byte_tokenizer(), eos=EOS, seq_len=32, num_lanes=12, local=cache, **rank)

    expected, _ = run_leg(make_loader, Leg(batches=len(found)))
    assert [found[row] for row in range(len(found))] == [list(row.input_ids) for row in expected]


def silence(proxy: FaultProxy) -> None:
    """From now on, bodies of shards stop in their middle."""
    proxy.set_faults([Fault("GET .*shard", "stall", at=200, seconds=60)])


ENDS = {
    "SIGKILL of the training process": (signal.SIGKILL, False),
    "SIGTERM of the training process": (signal.SIGTERM, False),
    "Ctrl-C": (signal.SIGINT, True),
    "SIGTERM of the whole group": (signal.SIGTERM, True),
}


@pytest.mark.parametrize(("way", "is_silent"), itertools.product(ENDS, [False, True]))
def test_a_job_that_is_ended_leaves_nothing_and_goes_on_exactly(
    start: Start, s3_proxy: FaultProxy, tmp_path: Path, way: str, is_silent: bool
) -> None:
    number, goes_to_all = ENDS[way]
    job = start()
    job.wait_for(5)
    if is_silent:
        silence(s3_proxy)
        assert _soon(lambda: any(name.endswith(".part") for name in job.left_overs()))
    (os.killpg if goes_to_all else os.kill)(job.process.pid, number)
    errors = job.end()
    assert job.process.returncode == -number, errors
    assert job.left_overs() == []
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0), errors
    s3_proxy.set_faults([])
    again = start(batches=5)
    assert again.end() == ""
    check_rows(again, tmp_path / "other-cache")


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_were_not_forked_end_with_the_training_process_too(start: Start, start_method: str) -> None:
    job = start(settings={"start_method": start_method})
    job.wait_for(3)
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    assert job.left_overs() == []


def test_a_group_that_is_killed_leaves_what_the_next_start_sweeps(start: Start, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    job = start()
    job.wait_for(5)
    silence(s3_proxy)
    assert _soon(lambda: any(name.endswith(".part") for name in job.left_overs()))
    os.killpg(job.process.pid, signal.SIGKILL)
    job.end()
    s3_proxy.set_faults([])
    again = start(batches=5)
    assert again.end() == ""
    assert again.left_overs() == []
    check_rows(again, tmp_path / "other-cache")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_that_dies_ends_the_job_with_its_cause(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    job = start()
    job.wait_for(5)
    worker = job.workers().pop()
    os.kill(worker, number)
    errors = job.end()
    if number == signal.SIGTERM:  # which it heeds
        assert "has ended with status 0" in errors
    else:
        assert re.search(rf"WorkerError: a worker process failed: .*process {worker} was ended by {number.name}", errors)
    assert "Resume from the last state" in errors
    assert ("ran out of memory" in errors) == (number == signal.SIGKILL)
    again = start(batches=5)
    assert again.end() == ""
    assert again.left_overs() == []
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
def test_a_transform_that_fails_shows_its_cause_and_the_document(start: Start, transform: str, cause: str, workers: int) -> None:
    job = start(settings={"transform": transform}, workers=workers, pause_s=0.0)
    errors = job.end()
    assert "the transform failed on sample" in errors
    assert cause in errors
    assert f", in {transform}" in errors, "the traceback of the transform"
    assert job.left_overs() == []


def test_a_transform_that_crashes_is_a_worker_that_died(start: Start) -> None:
    errors = start(settings={"transform": "crash"}, pause_s=0.0).end()
    assert re.search(r"WorkerError: a worker process failed: .*was ended by SIGSEGV", errors)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_that_ends_without_close_leaves_nothing(start: Start, workers: int) -> None:
    job = start(batches=5, closes=False, workers=workers)
    assert job.end() == ""
    assert job.process.returncode == 0
    assert job.left_overs() == []


@pytest.mark.parametrize("way", ["close", "break", "a new iterator", "with"])
def test_a_loop_that_is_left_while_the_store_is_silent_ends_its_workers(
    data: str, s3_proxy: FaultProxy, tmp_path: Path, way: str
) -> None:
    def make_loader() -> CloudLoader:
        return CloudLoader(
            data,
            tokenizer=byte_tokenizer(),
            eos=EOS,
            seq_len=32,
            num_lanes=12,
            batch_size=2,
            num_workers=3,
            local=tmp_path / "cache",
        )

    before = _children()
    loader = make_loader()
    batches = iter(loader)
    next(batches)
    silence(s3_proxy)
    assert _soon(lambda: bool(list((tmp_path / "cache").rglob("*.part"))))
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
    assert _soon(lambda: _children() <= before)
    assert time.monotonic() - began < SOON_S
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".lock", ".part")]


def _children() -> set[int]:
    from test_processes import children_of

    return children_of(os.getpid())


def test_a_sweep_leaves_what_is_in_use_and_what_is_not_ours(tmp_path: Path) -> None:
    from cloudload.left_overs import lock_of
    from cloudload.locks import locked

    folder = tmp_path / "corpus-0123456789abcdef"
    (tmp_path / "notes").mkdir()
    folder.mkdir()
    for name in ("a.mds", "a.mds.1.part", "a.mds.lock", "b.mds.2.part"):
        (folder / name).touch()
    mine = [tmp_path / "notes" / "chapter.part", tmp_path / "notes.lock"]
    for path in mine:
        path.touch()
    with locked(lock_of(folder / "b.mds")):
        sweep(tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == ["a.mds", "b.mds.2.part", "b.mds.lock"]
    sweep(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.mds"]
    assert all(path.exists() for path in mine)
