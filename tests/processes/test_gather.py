"""All processes of a job gather the same arrays, and no process waits long for a dead one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.all_gather import Gather, wait_for_all
from cloudload.system.arrays import Ints

_PATIENCE_S = 60.0
_FORK = multiprocessing.get_context("fork")
Job = Callable[[Any, int, int], Any]


def run_job(folder: Path, size: int, job: Job, missing: tuple[int, ...] = ()) -> dict[int, Any]:
    """Run `job(store, rank, size)` in one process per rank, and return the results by rank.

    If a job raises an error, its result is the pair (class, text). A process that was killed has
    no result.
    """
    connections: dict[int, tuple[Connection, Any]] = {}
    for rank in set(range(size)) - set(missing):
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_report, args=(folder, rank, size, job, sender))
        process.start()
        sender.close()
        connections[rank] = receiver, process
    results = {}
    for rank, (receiver, process) in connections.items():
        assert receiver.poll(_PATIENCE_S), f"process {rank} sent no result within {_PATIENCE_S} s"
        try:
            results[rank] = receiver.recv()
        except EOFError:
            process.join(_PATIENCE_S)
            assert process.exitcode == -signal.SIGKILL
    _open_store(folder, size).set("collected", "")
    return results


def _open_store(folder: Path, size: int) -> Any:
    return dist.PrefixStore("job", dist.FileStore(str(folder / "store"), size))


def _report(folder: Path, rank: int, size: int, job: Job, sender: Connection) -> None:
    store = _open_store(folder, size)
    try:
        sender.send(job(store, rank, size))
    except Exception as error:
        sender.send((type(error), str(error)))
    # wait until all ranks have reported, because a process that exits closes its connections
    store.wait(["collected"], timedelta(seconds=_PATIENCE_S))
    os._exit(0)  # skip the parent's cleanup at exit


def array_of(rank: int, turn: int) -> Ints:
    return np.arange(1 + turn % 4, dtype=np.int64) * 1_000 + rank * 10 + turn


def gather_some(store: Any, rank: int, size: int) -> list[list[Ints]]:
    gather = Gather(store, rank, size, _PATIENCE_S)
    gathered = []
    for turn in range(0, 6, 2):  # start two before finishing one
        finish = [gather.start(array_of(rank, each)) for each in (turn, turn + 1)]
        gathered += [each() for each in finish]
    gather.close()
    return gathered


@pytest.mark.parametrize(
    ("size", "most"), [(1, 64), (2, 64), (5, 64), (4, 2), (7, 2), (9, 3), (10, 3)]
)
def test_every_process_gets_the_arrays_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    monkeypatch.setattr("cloudload.loading.delivery.all_gather.MOST_MEMBERS", most)
    results = run_job(tmp_path, size, gather_some)
    assert sorted(results) == list(range(size))
    for gathered in results.values():
        for turn, arrays in enumerate(gathered):
            expected = [array_of(rank, turn).tolist() for rank in range(size)]
            assert [array.tolist() for array in arrays] == expected


@pytest.mark.parametrize("killed", [0, 3, 6])
@pytest.mark.parametrize("most", [64, 5, 2])
def test_a_process_that_dies_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, killed: int
) -> None:
    monkeypatch.setattr("cloudload.loading.delivery.all_gather.MOST_MEMBERS", most)

    def job(store: Any, rank: int, size: int) -> int:
        gather = Gather(store, rank, size, 10 * _PATIENCE_S)
        gather.start(array_of(rank, 0))()
        if rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        for turn in range(1, 4):
            gather.start(array_of(rank, turn))()
        return rank

    results = run_job(tmp_path, 7, job)
    assert sorted(results) == sorted(set(range(7)) - {killed})
    assert all(issubclass(error, RuntimeError) for error, _ in results.values())


@pytest.mark.parametrize("most", [64, 2])
def test_after_a_failure_and_after_its_end_a_gather_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("cloudload.loading.delivery.all_gather.MOST_MEMBERS", most)

    def job(store: Any, rank: int, size: int) -> list[str]:
        gather = Gather(store, rank, size, 10 * _PATIENCE_S)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        errors = []
        for turn in range(3):
            with pytest.raises(RuntimeError) as caught:
                gather.start(array_of(rank, turn))()
            errors.append(str(caught.value))
        gather.close()
        return errors

    results = run_job(tmp_path, 5, job)
    assert sorted(results) == [0, 2, 3, 4]
    for first, *others in results.values():
        assert first != "the connections are closed"
        assert others == 2 * ["the connections are closed"]


@pytest.mark.parametrize("most", [64, 2])
def test_a_process_that_dies_while_it_connects_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("cloudload.loading.delivery.all_gather.MOST_MEMBERS", most)
    monkeypatch.setattr("cloudload.loading.delivery.all_gather.CONNECT_S", 2.0)

    def job(store: Any, rank: int, size: int) -> int:
        wait_for_all(store, rank, size, 10 * _PATIENCE_S)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        gather = Gather(store, rank, size, 10 * _PATIENCE_S)
        gather.start(array_of(rank, 0))()
        return rank

    results = run_job(tmp_path, 5, job)
    assert sorted(results) == [0, 1, 3, 4]
    assert all(issubclass(error, RuntimeError) for error, _ in results.values())


def test_a_process_that_does_not_arrive_is_named(tmp_path: Path) -> None:
    def job(store: Any, rank: int, size: int) -> None:
        wait_for_all(store, rank, size, 2.0)

    results = run_job(tmp_path, 5, job, missing=(1, 3))
    assert sorted(results) == [0, 2, 4]
    for error, text in results.values():
        assert error is RanksDisagreeError
        assert text.startswith("processes 1, 3 (of 0 to 4) did not start iterating within 2 s")


def test_a_process_that_arrives_late_is_waited_for(tmp_path: Path) -> None:
    def job(store: Any, rank: int, size: int) -> list[Ints]:
        time.sleep(3.0 * (rank == 1))
        wait_for_all(store, rank, size, _PATIENCE_S)
        return Gather(store, rank, size, 1.0).start(array_of(rank, 0))()

    results = run_job(tmp_path, 3, job)
    assert [[array.tolist() for array in results[rank]] for rank in range(3)] == 3 * [
        [[0], [10], [20]]
    ]


EXIT_IN_A_GATHER = """
import os
import signal
import sys
import time

import numpy as np
import torch.distributed as dist

from cloudload.loading.delivery.all_gather import Gather


class KillsThePeer:
    # its finalizer runs late in the exit, when a thread that returns from gloo would abort
    def __init__(self, process, time):
        self.process, self.kill, self.time = process, os.kill, time

    def __del__(self):
        self.kill(self.process, 9)
        self.time.sleep(1)


folder, rank = sys.argv[1], int(sys.argv[2])
store = dist.FileStore(f"{folder}/store", 2)
store.set(str(rank), str(os.getpid()))
gather = Gather(store, rank, 2, 600)
if rank == 0:
    signal.pause()
gather.start(np.zeros(1, np.int64))
time.sleep(0.5)
last = KillsThePeer(int(store.get("0")), time)
"""


def test_a_process_that_exits_during_a_gather_does_not_abort(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXIT_IN_A_GATHER, str(tmp_path)]
    with subprocess.Popen([*command, "0"]) as peer:
        done = subprocess.run([*command, "1"], check=False, timeout=_PATIENCE_S)
        assert peer.wait(_PATIENCE_S) == -signal.SIGKILL
    assert done.returncode == 0
