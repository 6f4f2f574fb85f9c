"""`paused_collection` disables the garbage collector in a block, and then restores its state."""

from __future__ import annotations

import gc

import pytest

from cloudload.system.garbage import paused_collection


def fail_without_collection() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise KeyError


def test_the_collector_is_off_in_the_block_and_on_after_it_even_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail_without_collection()
    assert gc.isenabled()


def test_a_program_that_disabled_the_collector_keeps_it_disabled() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
