"""Save loaded tokenizers, and the results of their checks, as files in a node's cache.

    root/tokenizers/<digest>-<names and versions>     SHA-256 of the content, a newline, the content

A truncated or damaged file counts as missing, and so does another user's. If the folder is not
writable, every process computes the results again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from cloudload.system import file_locks, machine, temp_files, verified_files

FOLDER = "tokenizers"
_OWN_NAMES = re.compile(r"(learning-)?[0-9a-f]{32}-")


def kept_path(cache_root: Path, inputs: Iterable[str], names: Iterable[str]) -> Path:
    """The path of the result computed from `inputs`. The file name ends with `names`."""
    return cache_root / FOLDER / "-".join([digest_of(inputs), *names])


def digest_of(inputs: Iterable[str]) -> str:
    """The first 32 hex digits of a SHA-256 of `inputs`. The name of a kept file begins with it."""
    digest = hashlib.sha256()
    for text in inputs:
        digest.update(hashlib.sha256(text.encode(errors="surrogatepass")).digest())
    return digest.hexdigest()[:32]


def with_version(package: str) -> str:
    """The name of an installed package and its version, for `kept_path`."""
    return f"{package}-{machine.package_version(package)}"


def read_kept(path: Path) -> str | None:
    """Read a file that `keep` wrote; None if it is missing, truncated or damaged."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if not verified_files.is_unmodified(path.lstat()):
            return None
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest == _hash(content):
            return content.decode()
    return None


def learn_once(path: Path, learn: Callable[[], str]) -> str:
    """Return the content of the file `path`. If it is missing, `learn` computes it.

    One process of the node computes it while the others wait. If the folder is not writable, each
    process does.
    """
    if (kept := read_kept(path)) is not None:
        return kept
    lock = temp_files.lock_path(path.with_name(f"learning-{path.name}"))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_locks.locked(lock, what="check and parse the tokenizer"))
        if (kept := read_kept(path)) is None:
            keep(path, kept := learn())
        return kept


def keep(path: Path, content: str) -> None:
    """Write `content` to the file `path` atomically. Does nothing if its folder is read-only."""
    file_locks.remove_orphans(path.parent, _OWN_NAMES)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_locks.locked(temp_files.lock_path(path)), temp_files.partial_file(path) as part:
            data = content.encode()
            part.write_bytes(b"%s\n%s" % (_hash(data), data))
            verified_files.mark_verified(part)
            part.replace(path)


def sweep_tokenizers(cache_root: Path) -> None:
    """Remove the partial files and locks that killed processes left among the kept files."""
    file_locks.remove_orphans(cache_root / FOLDER, _OWN_NAMES)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
