"""An exception at any point leaves no lock held."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cloudload.system import file_locks, temp_files
from cloudload.system.file_locks import HeldLock, acquire, locked
from cloudload.system.temp_files import partial_file, scratch_file


def interrupt(call: Callable[[], object], number: int) -> bool:
    """Call a function, and raise `KeyboardInterrupt` before bytecode `number` of cloudload's code.

    Returns False if the call ended before.
    """
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (file_locks.__file__, temp_files.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
            left -= 1
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


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
    number = 0
    while interrupt(lambda: call(tmp_path / "x.lock"), number):
        assert temp_files._creation.acquire(blocking=False), "another thread could create no file"
        temp_files._creation.release()
        with locked(tmp_path / "x.lock", wait=False) as is_free:
            assert is_free, f"bytecode {number}"
        number += 1
    assert number > 20


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
