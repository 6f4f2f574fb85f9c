"""Small file systems for the caches of a campaign, in a mount namespace of this process."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

_NAMESPACE = "CLOUDLOAD_CHAOS_NAMESPACE"
AMPLE = "size=1g,nr_inodes=1000000"


def enter_namespace(module: str) -> None:
    """Run this program again in a mount namespace, so that its mounts end with it.

    It then has its own /dev/shm, where no other program leaves anything. Returns if it already runs
    there, or if the system does not permit it.
    """
    flags = ["--mount", "--propagation", "private"]
    flags += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if _NAMESPACE in os.environ:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("mount", "-t", "tmpfs", "none", "/dev/shm")
        return
    if shutil.which("unshare") is None:
        return
    if subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode:
        return
    os.environ[_NAMESPACE] = "1"
    os.execvp("unshare", ["unshare", *flags, sys.executable, "-m", module, *sys.argv[1:]])


def can_mount(folder: Path) -> bool:
    """Whether this process may mount file systems in a separate namespace."""
    if _NAMESPACE not in os.environ:
        return False
    place = folder / "trial"
    place.mkdir()
    try:
        mount(place)
        unmount(place)
    except subprocess.CalledProcessError:
        return False
    return True


def mount(folder: Path) -> None:
    """Mount an empty file system with ample space, unless the folder is one."""
    folder.mkdir(exist_ok=True)
    if not folder.is_mount():
        _run("mount", "-t", "tmpfs", "-o", AMPLE, "none", str(folder))


def unmount(folder: Path) -> None:
    """Remove the file system from the folder, once no process uses it."""
    _run("umount", "--lazy", str(folder))


def give_room(folder: Path, draw: random.Random | None) -> str:
    """Give a file system little more room than it uses, or, without `draw`, ample room.

    Returns the mount options. The file system must not grow meanwhile by more than it gets.
    """
    for _ in range(20):
        options = AMPLE if draw is None else _draw_room(folder, draw)
        with contextlib.suppress(subprocess.CalledProcessError):  # it has grown
            _run("mount", "-o", f"remount,{options}", str(folder))
            return options
    return "no change"


def _draw_room(folder: Path, draw: random.Random) -> str:
    found = os.statvfs(folder)
    if draw.random() < 0.2:
        files = found.f_files - found.f_ffree + draw.choice([3, 10, 60, 400])
        return f"size=1g,nr_inodes={files}"
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    more = draw.choice([8, 32, 100, 400, 1_000]) << 10
    return f"size={used + more},nr_inodes=1000000"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
