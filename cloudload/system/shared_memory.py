"""Shared memory that workers write and the training process reads, as a ring of slots per worker.

    slots      0         1         2         0         …
    worker     write ──► write ──► write ──► write
    trainer              read ───► read ───► read

A worker has one slot for each block that may be in flight, and one for the block being read. The
memory is anonymous, so the kernel frees it when the last process unmaps it, and it does not use a
container's small /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np

_ALIGNMENT = 64


class SharedMemoryRing:
    """Slots of equal size. Forked processes inherit them; spawned processes unpickle them."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        descriptor = anonymous_file()
        os.ftruncate(descriptor, max(1, num_slots * self.slot_bytes))
        self._map_file(descriptor)

    def _map_file(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, max(1, self.num_slots * self.slot_bytes))

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot, by index: uint8 [slot_bytes]."""
        start = number * self.slot_bytes
        return memoryview(self._map)[start : start + self.slot_bytes]

    def array(
        self, number: int, dtype: type[np.generic], shape: tuple[int, ...]
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """An array of `shape` that is stored at the start of a slot."""
        return np.ndarray(shape, dtype, self._map, number * self.slot_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "num_slots": self.num_slots,
            "slot_bytes": self.slot_bytes,
            "descriptor": reduction.DupFd(self._descriptor),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.num_slots, self.slot_bytes = state["num_slots"], state["slot_bytes"]
        self._map_file(state["descriptor"].detach())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def anonymous_file() -> int:
    """Return a descriptor of an empty, unnamed file, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cloudload")
    with tempfile.TemporaryFile() as file:  # Python was built against an old C library
        return os.dup(file.fileno())
