"""Units of work run on every engine, and no engine waits for a process that died."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, FailureKind, StoreError, WorkerError
from cloudload.tools.engines.local_processes import open_processes
from cloudload.tools.engines.units import Engine, Share, in_order, run_units


@pytest.fixture(params=["inline", "threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Engine | None]:
    """Run a test with each kind of executor: this process, two threads, and two processes."""
    if request.param == "threads":
        with ThreadPoolExecutor(2) as threads:
            yield threads
    else:
        with open_processes(2 if request.param == "processes" else 1) as processes:
            yield processes


def square(number: int) -> int:
    return number * number


def fail(kind: str) -> None:
    if kind == "ours":
        raise ConvertError("no such record")
    if kind == "store":
        Location("/not/there").read()
    if kind == "other":
        raise KeyError("s3://user:hunter2hunter2@host")


def die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)
    time.sleep(60)


def test_every_unit_has_one_result(executor: Engine | None) -> None:
    found = dict(run_units(square, range(50), executor))
    assert found == {number: number**2 for number in range(50)}


def test_no_units_are_no_results(executor: Engine | None) -> None:
    assert list(run_units(square, [], executor)) == []


def square_by_parts(number: int, on_bytes: Callable[[int], object]) -> int:
    for _ in range(number):
        on_bytes(10)
    return number * number


def test_the_bytes_of_all_units_are_reported_once(executor: Engine | None) -> None:
    sizes: list[int] = []
    found = dict(run_units(square_by_parts, range(20), executor, on_bytes=sizes.append))
    assert found == {number: number**2 for number in range(20)}
    assert sum(sizes) == 10 * sum(range(20))


def wait_for_reports(folder: str, on_bytes: Callable[[int], object]) -> None:
    """A unit that reports bytes until the file `seen` shows that a report has arrived."""
    while not os.path.exists(f"{folder}/seen"):
        on_bytes(1)
        time.sleep(0.01)


def test_local_processes_report_bytes_while_a_unit_runs(tmp_path: Path) -> None:
    def see(_: int) -> None:
        (tmp_path / "seen").touch()

    with open_processes(2) as processes:
        units = [str(tmp_path), str(tmp_path)]
        assert len(list(run_units(wait_for_reports, units, processes, on_bytes=see))) == 2


def test_results_can_be_taken_in_the_order_of_the_arguments() -> None:
    taken = [list(in_order(iter(pairs))) for pairs in itertools.permutations(enumerate("abcd"))]
    assert taken == [["a", "b", "c", "d"]] * 24
    first = in_order(iter([(1, "b"), (0, "a"), (3, "d")]))
    assert [next(first), next(first)] == ["a", "b"]


@pytest.mark.parametrize("processes", [False, True])
def test_the_error_of_a_unit_is_raised_as_it_was(processes: bool) -> None:
    with open_processes(2) if processes else ThreadPoolExecutor(1) as executor:
        with pytest.raises(ConvertError, match="no such record"):
            list(run_units(fail, ["", "ours", ""], executor))
        with pytest.raises(StoreError) as caught:
            list(run_units(fail, ["store"], executor))
        assert caught.value.kind is FailureKind.MISSING_OBJECT
        with pytest.raises(WorkerError, match="KeyError") as other:
            list(run_units(fail, ["other"], executor))
        assert "hunter2hunter2" not in str(other.value)


def square_slowly(number: int) -> int:
    time.sleep(0.2 * (number > 9))
    if number == 9:
        raise ConvertError("nine")
    return number * number


def test_units_that_still_run_after_an_error_have_no_part_in_the_next_run() -> None:
    with open_processes(3) as processes:
        for _ in range(3):
            with pytest.raises(ConvertError, match="nine"):
                list(run_units(square_slowly, [10, 11, 9], processes))
            assert sorted(run_units(square, range(6), processes)) == [
                (number, number**2) for number in range(6)
            ]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "exited with status 3"),
        ("kill", r"killed by SIGKILL \(out of memory\?\)"),
        ("term", "SIGTERM"),
    ],
)
def test_a_process_that_dies_is_said_to_be_dead(how: str, message: str) -> None:
    with open_processes(2) as executor, pytest.raises(WorkerError, match=message):
        list(run_units(die, [how], executor))


_INTERRUPTED = """
import os, signal
if __name__ != "__main__":
    os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, while a child imports modules
from cloudload.tools.engines.local_processes import open_processes
from cloudload.tools.engines.units import run_units
if __name__ == "__main__":
    with open_processes(2) as processes:
        assert sorted(run_units(abs, [-1, 2], processes)) == [(0, 1), (1, 2)]
"""


def test_ctrl_c_does_not_reach_processes_that_start(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(_INTERRUPTED)
    command = [sys.executable, str(script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (found.returncode, "KeyboardInterrupt" in found.stderr) == (0, False), found.stderr


def work_slowly(data: bytes) -> int:
    time.sleep(0.002)
    return len(data)


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0])
def test_a_process_killed_while_large_units_are_sent_is_an_error_not_a_wait(
    seconds: float,
) -> None:
    units = [bytes(10 if number % 3 else 300_000) for number in range(20_000)]
    with open_processes(2) as processes:
        assert processes is not None
        victim = next(iter(processes._workers.values()))
        threading.Timer(seconds, os.kill, args=(victim.pid, signal.SIGKILL)).start()
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            list(run_units(work_slowly, units, processes))


def test_what_cannot_be_sent_is_an_error() -> None:
    with (
        open_processes(2) as executor,
        pytest.raises(WorkerError, match=r"cannot send work to a worker process: .*lambda"),
    ):
        list(run_units(str, [lambda: "not picklable"], executor))


# ---------------------------------------------------------------- shares


def test_the_shares_of_all_workers_are_all_units() -> None:
    for count in (1, 2, 7, 64):
        shares = [Share.parse(f"{index}/{count}").take(range(50)) for index in range(count)]
        assert sorted(unit for share in shares for unit in share) == list(range(50))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {
                "SLURM_ARRAY_TASK_ID": "5",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_ARRAY_TASK_COUNT": "64",
            },
            (4, 64),
        ),
        (
            {
                "SLURM_ARRAY_TASK_ID": "30",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_STEP": "10",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            (2, 4),
        ),
        ({"JOB_COMPLETION_INDEX": "0", "WORKER_COUNT": "3"}, (0, 3)),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "2", "AWS_BATCH_JOB_ARRAY_SIZE": "3"}, (2, 3)),
    ],
)
def test_the_job_of_an_array_knows_its_share(
    environment: dict[str, str], expected: tuple[int, int]
) -> None:
    share = Share.parse("auto", environment)
    assert (share.index, share.count) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "not part of a job array"),
        ({"JOB_COMPLETION_INDEX": "0"}, "Set WORKER_COUNT"),
        ({"JOB_COMPLETION_INDEX": "3", "WORKER_COUNT": "3"}, "numbered from 0"),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "worker 3 of 0"),
    ],
)
def test_an_array_that_says_too_little_is_refused(
    environment: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Share.parse("auto", environment)
