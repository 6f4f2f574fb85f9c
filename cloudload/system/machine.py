"""This machine and process: packages, memory, open files, network file systems, and garbage.

With PyTorch imported, a full garbage collection takes 0.2 s, and parsing a tokenizer or an index
causes several. In a forked worker, it also copies the memory that the worker shares.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # a container's limit, in bytes

_MOST_OPEN_FILES = 1 << 16

_paused: list[bool] = []
"""Has an item while a pause is active, so that a process forked in the pause can end it."""

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = re.compile(
    "nfs4?|cifs|smb3|smbfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|wekafs"
    # most other FUSE file systems are remote, such as fuse.sshfs, fuse.gcsfuse, and fuse.juicefs
    r"|fuse(\.(?!fuse-overlayfs|mergerfs|bindfs|lxcfs).*)?"
)


def package_version(name: str) -> str | None:
    """The version of an installed package; None if the package is not installed.

    `name` is the name of both the package and its module. The version of an imported package cannot
    change, so it is read only once, because that parses a file. Other packages may be installed
    while a notebook runs.
    """
    return _read_once(name) if name in sys.modules else _read(name)


def _read(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


_read_once = cache(_read)


def total_memory_bytes() -> int:
    """The machine's physical memory, or the container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    return physical


def raise_open_file_limit() -> None:
    """Raise this process's soft limit on open files to the hard limit, but not above 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def network_type(folder: Path) -> str | None:
    """The type of the network file system that a folder is on, or will be on once it is created.

    Returns None for a local file system, and if the type is unknown. On a network file system,
    another machine can remove a file that a process on this machine has mapped. If the process then
    reads the mapped memory, SIGBUS kills it. Locks may work only between processes of one machine.
    """
    with contextlib.suppress(OSError, StopIteration, IndexError):
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        device = os.stat(existing).st_dev
        for line in MOUNTS.read_text(errors="replace").splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                kind = source.split()[0]
                return kind if _NETWORK.fullmatch(kind) else None
    return None


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Run the block without the cyclic garbage collector. Afterwards, restore its state."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused.append(True)
    try:
        yield
    finally:
        _paused.clear()
        gc.enable()


def freeze_objects() -> None:
    """Exclude all present objects from later collections, in a process that has just started.

    Also ends a pause in which the process was forked.
    """
    gc.freeze()
    if _paused:
        _paused.clear()
        gc.enable()
