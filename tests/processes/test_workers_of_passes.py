"""Workers stay alive from pass to pass and through the tail of a finite run, and exit when their
loader is closed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.errors import WorkerError
from cloudload.loading.workers.processes import WorkerProcess
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_plan import WorkerPlan
from testkit.counted import write_counted
from testkit.loaders import ids_of, make_loader
from testkit.noted_calls import note_calls
from testkit.processes import command_of


def test_an_endless_run_has_epochs_too_and_a_resume_ends_them_alike(folder: str) -> None:
    loader = make_loader(folder, stop_every="epoch", num_workers=2)
    lengths = [len(ids_of(loader)) for _ in range(3)]
    other = make_loader(folder, stop_every="epoch")
    list(other.take(lengths[0] + 1))
    state = other.state_dict()
    other = make_loader(folder, stop_every="epoch")
    other.load_state_dict(state)
    assert [len(ids_of(other)) for _ in range(2)] == [lengths[1] - 1, lengths[2]]
    loader.close()


def test_the_workers_continue_from_pass_to_pass_and_end_with_the_loader(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=2)
    list(loader)
    workers = workers_of_this_process()
    assert len(workers) == 2
    list(loader)
    assert workers_of_this_process() == workers
    loader.load_state_dict(loader.state_dict())
    assert wait_for_no_workers() == set()
    list(loader)
    loader.close()
    assert wait_for_no_workers() == set()


def test_the_workers_continue_if_nobody_asks_for_the_end_of_a_pass(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=1)
    seen = []
    for _ in range(3):
        seen += ids_of(islice(loader, 2))
        seen_workers = workers_of_this_process()
        assert len(seen_workers) == 1
    first = seen_workers
    seen += ids_of(islice(loader, 2))
    assert workers_of_this_process() == first
    assert seen == ids_of(make_loader(folder).take(8))
    del loader
    assert wait_for_no_workers() == set()


def test_a_forked_child_cannot_take_its_parents_batches(folder: str) -> None:
    loader = make_loader(folder, stop_every=2, num_workers=1)
    list(loader)
    child = os.fork()
    if not child:
        try:
            list(loader)
        except WorkerError:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert ids_of(loader) == ids_of(make_loader(folder).take(4))[2:]
    loader.close()


def workers_of_this_process() -> set[int]:
    children = {
        int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    }
    return {pid for pid in children if b"resource_tracker" not in command_of(pid)} - _BEFORE


def wait_for_no_workers() -> set[int]:
    deadline = time.monotonic() + 10
    while workers_of_this_process() and time.monotonic() < deadline:
        time.sleep(0.05)
    return workers_of_this_process()


_BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _note_other_processes() -> None:
    _BEFORE.clear()
    _BEFORE.update(workers_of_this_process())


# ---------------------------------------------------------------- the end of a finite run


MODES: dict[str, dict[str, Any]] = {
    "concat": {"packing": "concat"},
    "best_fit": {"packing": "best_fit"},
    "cut": {"packing": "one_per_row", "overflow": "cut"},
    "rows": {"packing": "one_per_row", "overflow": "rows"},
    "replayed": {"packing": "best_fit", "exchange_every": 3},
    "spawned": {"packing": "concat", "start_method": "spawn"},
}
"""Settings by the name of a mode. The workers of all modes except `spawned` are forked."""


@pytest.fixture(scope="module")
def short_lane(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset in which every twelfth document, all of them in lane 0, is short. Lane 0 runs dry
    early, so most of the run is its tail."""
    texts = [f"{number} " * (1 if number % 12 == 0 else 9) for number in range(200)]
    return write_counted(tmp_path_factory.mktemp("end") / "mds", texts, shard_bytes=1_000)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of each process that this process starts."""
    found: list[str] = []
    note_calls(monkeypatch, BaseProcess, "start", lambda process: found.append(process.name))
    return found


def read(loader: CloudLoader) -> list[tuple[list[list[int]], dict[str, Any]]]:
    """Read all batches. Returns the token IDs of each batch and the state after it."""
    with loader:
        return [(batch["input_ids"].tolist(), loader.state_dict()) for batch in loader]


@pytest.mark.parametrize(
    ("mode", "lengths"),
    [
        *[(mode, "off") for mode in MODES],
        *[(mode, "require") for mode in MODES if mode != "spawned"],
        pytest.param("spawned", "require", marks=pytest.mark.long),
    ],
)
def test_a_finite_run_starts_each_of_its_workers_once(
    short_lane: str, starts: list[str], mode: str, lengths: str
) -> None:
    def make(**more: Any) -> CloudLoader:
        return make_loader(
            short_lane, epochs=2, shuffle=False, lengths=lengths, **{**MODES[mode], **more}
        )

    expected = read(make(start_method=None))
    assert starts == []
    tails = [state["tail"] for _, state in expected]
    assert not tails[3], "the tail must not be the whole run"
    assert sum(map(bool, tails)) > 1, "several batches must be in the tail"
    found = read(make(num_workers=2))
    assert len(starts) == 2
    assert found == expected
    middle = len(expected) - 2
    resumed = make(num_workers=2)
    resumed.load_state_dict(expected[middle][1])
    assert read(resumed) == expected[middle + 1 :]
    assert len(starts) == 4, (
        "after a resume in the tail, the same workers must measure and read the tail"
    )


def test_a_mixture_whose_streams_end_starts_each_of_its_workers_once(
    short_lane: str, starts: list[str]
) -> None:
    def make(num_workers: int) -> CloudLoader:
        data = [Stream(short_lane, proportion=weight, name=str(weight)) for weight in (0.7, 0.3)]
        return make_loader(data, epochs=1, num_workers=num_workers)

    expected = read(make(0))
    assert read(make(2)) == expected
    assert len(starts) == 2


def test_a_worker_halts_between_blocks_and_forgets_what_it_had_read_ahead(
    short_lane: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One worker has read far ahead when the other worker's lane runs dry."""
    expected = read(make_loader(short_lane, epochs=1, shuffle=False, lengths="off"))
    log = tmp_path / "phases"

    def note(worker: Worker, plan: WorkerPlan) -> None:
        with log.open("a") as file:
            asked = "rows"
            if (request := plan.phase.request) is not None:
                asked = "sizes" if request.documents is None else "documents"
            file.write(f"{worker.index} {asked}\n")

    note_calls(monkeypatch, Worker, "read_blocks", note)
    loader = make_loader(
        short_lane, epochs=1, shuffle=False, lengths="off", num_workers=2, prefetch_batches=64
    )
    assert read(loader) == expected
    phases = log.read_text().split("\n")[:-1]
    for worker in "01":
        assert [each[2:] for each in phases if each[0] == worker] == [
            "rows",
            "sizes",
            "documents",
            "rows",
        ]


# ---------------------------------------------------------------- a dead worker


LARGER_THAN_A_SOCKET = bytes(1 << 24)


def leave_a_child_and_die(_connection: Connection, pid_file: Path) -> None:
    if (child := os.fork()) == 0:
        time.sleep(3_600)  # keeps the stream open, but does not read
        os._exit(0)
    pid_file.write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(120)
def test_a_dead_worker_whose_child_keeps_the_stream_open_is_reported(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("fork")
    connection, theirs = context.Pipe()
    process = context.Process(
        target=leave_a_child_and_die, args=(theirs, tmp_path / "pid"), daemon=True
    )
    process.start()
    theirs.close()
    worker: Any = WorkerProcess.__new__(WorkerProcess)
    worker._connection, worker._process, worker._has_block = connection, process, False
    try:
        worker.enter(LARGER_THAN_A_SOCKET)
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            worker.receive()
    finally:
        process.join()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        connection.close()
