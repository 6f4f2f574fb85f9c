"""`paused_collection` disables the garbage collector in a block, and then restores its state."""

from __future__ import annotations

import gc
import multiprocessing
import sys

import pytest

from cloudload.system.garbage import freeze_objects, paused_collection


def fail_without_collection() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise KeyError


def test_the_collector_is_off_in_the_block_and_on_after_it_even_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail_without_collection()
    assert gc.isenabled()


def exit_with_state() -> None:
    freeze_objects()
    sys.exit(not gc.isenabled())


def test_a_process_that_is_forked_in_a_pause_ends_the_pause() -> None:
    process = multiprocessing.get_context("fork").Process(target=exit_with_state)
    with paused_collection():
        process.start()
    process.join()
    assert process.exitcode == 0


def test_a_program_that_disabled_the_collector_keeps_it_disabled() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
