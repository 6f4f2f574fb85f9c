"""An exception at any point leaves no lock held."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudload.system import temp_files
from cloudload.system.file_locks import HeldLock, OwnLockError, acquire, locked
from cloudload.system.temp_files import partial_file, scratch_file
from testkit.interrupts import count_visits, interrupt, run_at


def hold(path: Path) -> None:
    with locked(path):
        pass


def hold_by_hand(path: Path) -> None:
    lock = acquire(path, wait=False)
    assert lock is not None
    lock.release()


def write_part(path: Path) -> None:
    with partial_file(path) as part:
        part.touch()


def write_scratch(_: Path) -> None:
    with scratch_file() as file:
        file.write(b"1")


@pytest.mark.parametrize("call", [hold, hold_by_hand, write_part, write_scratch])
def test_an_interrupt_before_any_bytecode_leaves_no_lock_held(
    tmp_path: Path, call: Callable[[Path], None]
) -> None:
    call(tmp_path / "warm")
    visits = count_visits(lambda: call(tmp_path / "x.lock"))
    assert len(visits) > 20
    with ThreadPoolExecutor(1) as another:
        for number in range(len(visits)):
            assert interrupt(lambda: call(tmp_path / "x.lock"), number)
            can_create = another.submit(temp_files._creation.acquire, timeout=5).result()
            assert can_create, f"bytecode {number}: another thread could create no file"
            another.submit(temp_files._creation.release).result()
            with locked(tmp_path / "x.lock", wait=False) as is_free:
                assert is_free, f"bytecode {number}"


def test_a_handler_that_needs_the_lock_of_the_call_that_it_interrupts_does_not_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"

    def handle() -> None:
        with locked(path, wait=False) as is_free:
            found.append(is_free)
        with locked(path, is_reentrant=True) as is_free:
            found.append(is_free)
        try:
            hold(path)
        except OwnLockError as error:
            refused.append(str(error))

    found, refused = list[bool](), list[str]()
    number = 0
    while run_at(lambda: hold(path), number, handle):
        number += 1
    assert number > 20
    assert 0 < len(refused) < number
    assert all(f"cannot wait for {path}" in each for each in refused)
    assert found.count(True) < len(found)
    assert all(found[1::2])


def test_a_lock_whose_holder_was_forgotten_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = acquire(path, wait=False)
    assert isinstance(lock, HeldLock)
    assert acquire(path, wait=False) is None
    del lock
    assert acquire(path, wait=False) is not None


def test_a_link_at_a_locks_path_is_refused_and_its_target_not_created(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "x.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "x.lock"):
        pass
    assert not target.exists()
