"""Small file systems in memory, which fill up quickly. Only root can mount them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system at a new folder for a `with` block. `options` are, e.g., `size=32k`."""
    mount(folder, options)
    try:
        yield folder
    finally:
        unmount(folder)


def mount(folder: Path, options: str) -> None:
    """Mount an empty file system, unless one is mounted at `folder`."""
    folder.mkdir(exist_ok=True)
    if not folder.is_mount():
        _run("mount", "-t", "tmpfs", "-o", options, "none", str(folder))


def remount(folder: Path, options: str) -> None:
    """Change the options of the file system at `folder`."""
    _run("mount", "-o", f"remount,{options}", str(folder))


def unmount(folder: Path) -> None:
    """Unmount the file system at `folder`, if there is one, once no process uses it."""
    if folder.is_mount():
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
