"""The shared memory and the cache files that an ended job has left behind."""

from __future__ import annotations

import os
from pathlib import Path

_NAMED_BY_PYTHON_OR_TORCH = ("torch_", "psm_", "sem.", "mp-")
_LEFT_OVERS = (".lock", ".part", ".tmp")


def shared_memory() -> set[str]:
    """The names of the files in /dev/shm that Python or torch has created."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(_NAMED_BY_PYTHON_OR_TORCH)}


def orphans(before: set[str]) -> set[str]:
    """The names in /dev/shm that are not in `before` and that no process maps into its memory."""
    new = shared_memory() - before
    return new - {name for name in new if _is_mapped(name)}


def _is_mapped(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text(errors="replace"):
                return True
        except OSError:
            continue  # the process has ended
    return False


def left_overs(cache: Path) -> list[Path]:
    """The lock files and the unfinished files in a cache."""
    return [path for path in cache.rglob("*") if path.suffix in _LEFT_OVERS]
