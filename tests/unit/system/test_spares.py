"""No two callers have the same spare at a time, and none has one that an exception left behind."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudload.system.threads import Spares


class Tool:
    """An object that notes whether it is used or closed."""

    def __init__(self) -> None:
        self.is_used = self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def use(spares: Spares[Tool], barrier: threading.Barrier) -> Tool:
    with spares.lend() as tool:
        assert not tool.is_used
        tool.is_used = True
        barrier.wait(10)
        tool.is_used = False
        return tool


def test_callers_at_the_same_time_have_different_objects_which_are_used_again() -> None:
    spares, barrier = Spares(Tool, Tool.close), threading.Barrier(3)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            found = set(threads.map(lambda _: use(spares, barrier), range(3)))
            assert len(found) == 3
    with spares.lend() as outer, spares.lend() as inner:
        assert {outer, inner} < found


def test_after_an_exception_an_object_is_closed_and_not_lent_again() -> None:
    spares = Spares(Tool, Tool.close)
    with pytest.raises(KeyboardInterrupt), spares.lend() as left:
        raise KeyboardInterrupt
    with spares.lend() as other:
        pass
    assert left.is_closed
    assert other is not left
    assert not other.is_closed


def test_close_closes_idle_objects_and_lend_makes_new_ones() -> None:
    spares = Spares(Tool, Tool.close)
    with spares.lend() as first:
        spares.close()
        assert not first.is_closed
    spares.close()
    assert first.is_closed
    with spares.lend() as second:
        assert second is not first


def test_a_pickle_has_no_objects() -> None:
    spares = Spares(Tool, Tool.close)
    with spares.lend() as own:
        pass
    with pickle.loads(pickle.dumps(spares)).lend() as other:
        assert other is not own
