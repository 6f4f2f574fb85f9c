"""What a node has learned of tokenizers, in files under its cache.

    root/tokenizers/<digest>-<names and versions>     SHA-256 of the rest, a newline, the rest

A truncated or damaged file reads as missing. If the folder is not writable, the next process learns
everything again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from cloudload.system.file_locks import locked, remove_orphans
from cloudload.system.temp_files import lock_path, partial_file

FOLDER = "tokenizers"


def kept_path(cache_root: Path, inputs: Iterable[str], names: Iterable[str]) -> Path:
    """The path of what was learned from `inputs`. The name of the file ends with `names`."""
    digest = hashlib.sha256()
    for text in inputs:
        digest.update(hashlib.sha256(text.encode(errors="surrogatepass")).digest())
    return cache_root / FOLDER / "-".join([digest.hexdigest()[:32], *names])


def with_version(package: str) -> str:
    """The name of an installed package and its version, for `kept_path`."""
    return f"{package}-{version(package)}"


def read_kept(path: Path) -> str | None:
    """Read a file that `keep` wrote; None if it is missing, truncated or damaged."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest, _, content = path.read_text("utf-8").partition("\n")
        if digest == _hash(content):
            return content
    return None


def keep(path: Path, content: str) -> None:
    """Write `content` to a file that appears whole, unless its folder is not writable."""
    remove_orphans(path.parent)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_path(path)), partial_file(path) as part:
            part.write_text(f"{_hash(content)}\n{content}", "utf-8")
            part.replace(path)


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
