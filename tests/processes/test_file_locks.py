"""One process at a time holds a file lock, and no lock file remains when processes exit."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest

from cloudload.system import temp_files
from cloudload.system.child_processes import SIGTERM_STATUS, exit_with_parent
from cloudload.system.file_locks import acquire, locked
from cloudload.system.temp_files import partial_file, remove_all_and_stop
from testkit import ROOT


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with locked(path), locked(path, wait=False) as is_free:
        assert not is_free
    assert not path.exists()
    with locked(path, wait=False) as is_free:
        assert is_free
    script = f"""
from pathlib import Path
from cloudload.system.file_locks import locked
counter = Path({str(tmp_path / "counter")!r})
for _ in range(200):
    with locked(Path({str(path)!r})):
        counter.write_text(str(int(counter.read_text() or 0) + 1) if counter.exists() else "1")
"""
    processes = [subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "800"
    assert not path.exists()


def test_a_wait_for_a_lock_can_be_limited(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with ThreadPoolExecutor(1) as other:  # a thread never waits for its own lock
        held = other.submit(acquire, path, wait=False).result()
    with locked(path, most_wait_s=0.2) as is_free:
        assert not is_free
    assert held is not None
    held.release()
    with locked(path, most_wait_s=0.0) as is_free:
        assert is_free
    context: Any = multiprocessing.get_context("fork")
    queue, is_held = context.Queue(), context.Event()

    def take() -> None:
        is_held.wait()
        with locked(path, most_wait_s=600.0) as is_free:
            queue.put(is_free)

    child = context.Process(target=take)
    child.start()  # fork before taking the lock, which the child would inherit
    with locked(path):
        is_held.set()
        time.sleep(0.2)
    assert queue.get(timeout=60)
    child.join()
    assert not path.exists()


def test_a_forked_process_that_inherits_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with locked(path):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        taken = threading.Event()

        def take() -> None:
            with locked(path):
                taken.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        while not _is_blocked_in_flock(path):
            time.sleep(0.01)
    try:
        assert taken.wait(30)
    finally:
        child.kill()
        child.join()
        thread.join()


def _is_blocked_in_flock(path: Path) -> bool:
    """Whether any thread on this machine waits for a lock on the file."""
    number = str(path.stat().st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and line.split()[-3].endswith(f":{number}") for line in lines)


def end_while_threads_hold_files(folder: Path) -> None:
    """Return while threads hold a lock and a partial file."""
    holds = threading.Barrier(3)

    def hold(file: AbstractContextManager[object]) -> None:
        with file:
            holds.wait()
            time.sleep(60)

    for file in (locked(folder / "x.lock"), partial_file(folder / "x")):
        threading.Thread(target=hold, args=(file,), daemon=True).start()
    (folder / "x.0123456789ab.part").touch()
    holds.wait()
    [part] = temp_files._registered.keys() - {folder / "x.lock"}
    part.touch()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_child_of_multiprocessing_that_ends_removes_its_files(
    tmp_path: Path, method: str
) -> None:
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=end_while_threads_hold_files, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.0123456789ab.part"], (
        "only the part file of another process may remain"
    )


def take_locks_until_told_to_end(folder: Path, seconds: float) -> None:
    """Exit while threads take and release locks, and while some wait for another process's lock."""

    def take_locks() -> None:
        while True:
            with locked(folder / f"{random.randrange(6)}.lock"):
                time.sleep(0.002 * random.random())

    for _ in range(6):
        threading.Thread(target=take_locks, daemon=True).start()
    time.sleep(seconds)
    remove_all_and_stop()
    os._exit(0)


def test_processes_that_end_while_they_take_locks_leave_none(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for _ in range(8):
        processes = [
            fork.Process(target=take_locks_until_told_to_end, args=(tmp_path, 0.1 + 0.005 * number))
            for number in range(3)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert list(tmp_path.iterdir()) == []


def create_a_lock_as_sigterm_arrives(path: Path) -> None:
    """Send this process SIGTERM after the lock file is created, but before it is registered."""
    exit_with_parent()
    create = os.open

    def create_and_interrupt(name: Any, *arguments: Any) -> int:
        descriptor = create(name, *arguments)
        if name == path:
            os.kill(os.getpid(), signal.SIGTERM)
        return descriptor

    vars(os)["open"] = create_and_interrupt
    with locked(path):
        time.sleep(60)


def test_a_worker_that_is_terminated_while_it_creates_a_lock_leaves_none(tmp_path: Path) -> None:
    arguments = (tmp_path / "x.lock",)
    child = multiprocessing.get_context("fork").Process(
        target=create_a_lock_as_sigterm_arrives, args=arguments
    )
    child.start()
    child.join()
    assert child.exitcode == SIGTERM_STATUS
    assert list(tmp_path.iterdir()) == []


def exit_while_threads_take_locks(folder: Path) -> None:
    """Return while threads take locks, and delay this process's exit by 0.5 s."""
    Finalize(None, time.sleep, args=(0.5,), exitpriority=-2)  # runs after files are removed
    for number in range(6):
        threading.Thread(
            target=take_lock_again_and_again, args=(folder, number), daemon=True
        ).start()
    time.sleep(0.1)


def take_lock_again_and_again(folder: Path, number: int) -> None:
    while True:
        with locked(folder / f"{number}.lock"), partial_file(folder / str(number)) as part:
            part.touch()
            time.sleep(0.002)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_threads_create_no_files_once_their_process_exits(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=exit_while_threads_take_locks, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert list(tmp_path.iterdir()) == []


AT_EXIT = """
import atexit, sys
from pathlib import Path

def read():
    from cloudload.system.threads import DaemonThreadPool
    pool = DaemonThreadPool(1, "fetch")
    try:
        pool.submit(take).result()
    except RuntimeError as error:
        print(error, flush=True)

def take():
    with locked(Path(sys.argv[1], "x.lock")):
        pass

atexit.register(read)
from cloudload.system.file_locks import locked
"""


def test_a_function_at_exit_that_waits_for_a_thread_gets_an_error(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path)],
        cwd=ROOT,
        timeout=120,
        capture_output=True,
        text=True,
        check=True,
    )
    # Python 3.12 and later refuse to start the thread
    assert re.search("this process is exiting|at interpreter shutdown", process.stdout)
    assert list(tmp_path.iterdir()) == []


class Lock:
    """A lock that is never free, as if another thread waited for an unresponsive file system."""

    waits = 0

    def acquire(self, timeout: float) -> bool:
        self.waits += 1
        return False


def test_an_exit_waits_once_for_a_file_system_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = Lock()
    monkeypatch.setattr(temp_files, "_creation", lock)
    monkeypatch.setattr(temp_files, "_exiting", {})
    monkeypatch.setattr(temp_files, "_registered", {})
    remove_all_and_stop()
    remove_all_and_stop()
    assert lock.waits == 1
