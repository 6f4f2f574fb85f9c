"""A job's leftovers: shared memory, and files in its cache."""

from __future__ import annotations

import os
from pathlib import Path

_NAMED_BY_PYTHON_OR_TORCH = ("torch_", "psm_", "sem.", "mp-")
_LEFT_OVERS = (".lock", ".part", ".tmp")


def shared_memory() -> set[str]:
    """The names that Python and torch have created in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(_NAMED_BY_PYTHON_OR_TORCH)}


def orphans(before: set[str]) -> set[str]:
    """The names in /dev/shm that are not in `before`, and that no living process uses."""
    new = shared_memory() - before
    return new - {name for name in new if _is_mapped(name)}


def _is_mapped(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text(errors="replace"):
                return True
        except OSError:
            continue  # it has ended
    return False


def left_overs(cache: Path) -> list[Path]:
    """Files of a cache that are neither shards nor orders."""
    return [path for path in cache.rglob("*") if path.suffix in _LEFT_OVERS]
