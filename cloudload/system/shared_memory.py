"""Shared memory that workers write and the training process reads, as a ring of slots per worker.

    slots      0         1         2         0         …
    worker     write ──► write ──► write ──► write
    trainer              read ───► read ───► read

A worker has a slot for each block that it may write ahead, and one for the block being read. The
memory is anonymous, so the kernel frees it when no process uses it anymore. It does not use
/dev/shm, which is small in many containers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

_ALIGNMENT = 64


class SharedMemoryRing:
    """Slots of equal size, `slot_bytes` rounded up to a multiple of 64 bytes.

    Forked processes inherit the memory. Spawned processes unpickle the ring, which maps it again.
    """

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        descriptor = anonymous_file()
        os.ftruncate(descriptor, max(1, num_slots * self.slot_bytes))
        self._map_file(descriptor)

    def _map_file(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, max(1, self.num_slots * self.slot_bytes))

    def slot(self, index: int) -> memoryview:
        """A writable view of the `slot_bytes` bytes of the slot with this index."""
        start = index * self.slot_bytes
        return memoryview(self._map)[start : start + self.slot_bytes]

    def array(
        self, index: int, dtype: type[np.generic], shape: tuple[int, ...]
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """A writable array of `shape`, stored at the start of the slot with this index."""
        return np.ndarray(shape, dtype, self._map, index * self.slot_bytes)

    def write_text(self, index: int, text: str) -> None:
        """Fill a slot with `text` in UTF-8, truncated to the slot's size."""
        self.slot(index)[:] = text.encode()[: self.slot_bytes].ljust(self.slot_bytes, b"\0")

    def read_text(self, index: int) -> str:
        """Return the text of a slot, even if another process is writing to the slot."""
        before, found = b"", bytes(self.slot(index))
        while found != before:
            before, found = found, bytes(self.slot(index))
        return found.rstrip(b"\0").decode(errors="ignore")

    def __getstate__(self) -> dict[str, Any]:
        return {
            "num_slots": self.num_slots,
            "slot_bytes": self.slot_bytes,
            "descriptor": reduction.DupFd(self._descriptor),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.num_slots, self.slot_bytes = state["num_slots"], state["slot_bytes"]
        self._map_file(state["descriptor"].detach())

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        # at the end of a program, `os` may be gone before this object
        if hasattr(self, "_descriptor"):
            close(self._descriptor)


def anonymous_file() -> int:
    """Return a descriptor of an empty, unnamed file, in memory if Python supports memfds."""
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create("cloudload")
        return descriptor
    with tempfile.TemporaryFile() as file:  # macOS, and Python built against an old C library
        return os.dup(file.fileno())
