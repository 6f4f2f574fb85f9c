"""The memory of this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # a container's limit, in bytes


def total_memory_bytes() -> int:
    """The machine's physical memory, or the container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    return physical
