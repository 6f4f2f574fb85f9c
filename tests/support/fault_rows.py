"""What the sections of the fault table share: rows of Markdown, and messages in one line without
paths of this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_MOST_CHARACTERS = 420
_PATH = re.compile(r"/(?:tmp|work|usr|root|home|opt|var)/[^\s:;,'\"()|`]*")
_NAMED_BY_PYTHON_OR_TORCH = ("torch_", "psm_", "sem.", "mp-")
_LEFT_OVERS = (".lock", ".part", ".tmp")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A section, with its table; a head that ends in `:` is of numbers."""
    rules = ["---:" if head.endswith(":") else "---" for head in heads]
    lines = [[head.rstrip(":") for head in heads], rules, *rows]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shorten(message: str) -> str:
    """One line, with … for folders of this machine, […] for the midst of what is long, and / for
    the ends of lines."""
    message = _PATH.sub(lambda path: "…/" + path[0].rstrip("/").rpartition("/")[2], message)
    message = re.sub(r"\s*\n\s*", " / ", message.strip())
    message = re.sub(r"\s+", " ", message).replace("|", "\\|")
    half = _MOST_CHARACTERS // 2
    return (
        message if len(message) <= _MOST_CHARACTERS else f"{message[:half]} […] {message[-half:]}"
    )


def shared_memory() -> set[str]:
    """What Python and torch have named in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(_NAMED_BY_PYTHON_OR_TORCH)}


def orphans(before: set[str]) -> set[str]:
    """What was named in /dev/shm since, and no living process of this machine has in use."""
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


def soon(condition: Callable[[], bool], seconds: float = 25.0) -> bool:
    """Whether it comes true within that time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
