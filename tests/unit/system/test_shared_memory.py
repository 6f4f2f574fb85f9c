"""A ring of shared memory frees its file, also at the end of a program."""

from __future__ import annotations

import os

import pytest

from cloudload.system import shared_memory
from cloudload.system.shared_memory import SharedMemoryRing


def test_a_ring_is_freed_even_if_python_has_taken_down_the_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = SharedMemoryRing(2, 100)
    assert len(ring.slot(1)) == 128
    descriptor = ring._descriptor
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "os", None)
        del ring
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
