"""Workers stay alive from pass to pass, and exit when their loader is closed."""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path

import pytest

from cloudload.errors import WorkerError
from testkit.loaders import ids_of, make_loader
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
