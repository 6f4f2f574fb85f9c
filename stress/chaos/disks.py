"""Mount small file systems for the caches of a campaign, in a separate mount namespace."""

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
    """Restart this program in a new mount namespace, so that its mounts disappear when it exits.

    The restarted program has a private /dev/shm, so names that it finds there are its own. Returns
    in the restarted program, or if the system does not permit the namespace.
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
    """Mount an empty file system with ample space, unless one is mounted at `folder`."""
    folder.mkdir(exist_ok=True)
    if not folder.is_mount():
        _run("mount", "-t", "tmpfs", "-o", AMPLE, "none", str(folder))


def unmount(folder: Path) -> None:
    """Unmount the file system at `folder`. It disappears once no process uses it."""
    _run("umount", "--lazy", str(folder))


def give_room(folder: Path, draw: random.Random | None) -> str:
    """Resize a file system to little more than it uses, or, if `draw` is None, to ample space.

    Returns the mount options. Tries up to 20 times, because a resize fails if the files have
    already outgrown the new size.
    """
    for _ in range(20):
        options = AMPLE if draw is None else _draw_room(folder, draw)
        with contextlib.suppress(subprocess.CalledProcessError):  # the files have outgrown it
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
