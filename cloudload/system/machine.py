"""This machine and process: packages, memory, cores, disk space, files, processes, and garbage.

Linux has calls and files that macOS lacks. Only this package uses them, and each use has another
way for macOS:

    os.sched_getaffinity        all cores               machine.usable_cores
    os.posix_fallocate          zeros are written       machine.allocate
    /proc/PID/stat, mountinfo   the answer is unknown   machine.is_stopped, .network_type
    /proc/PID/stat              an error                machine.cpu_seconds
    os.memfd_create             an unlinked file        shared_memory.anonymous_file
    os.pidfd_open               no watch                child_processes.open_trainer_pidfd

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

PROCESSES = Path("/proc")
MOUNTS = PROCESSES / "self/mountinfo"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ZEROS = memoryview(bytes(1 << 20))

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
        with suppress(ValueError):  # the kernel of macOS has a lower limit than the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # a process on macOS may use all of them


def allocate(descriptor: int, start: int, size: int) -> None:
    """Extend a file that has `start` bytes by `size` zeros, for which the disk then has space.

    Raises `OSError` if the disk is full. Without it, a write to a memory map of the file would kill
    the process with SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    end = start + size
    while start < end:
        start += os.pwrite(descriptor, _ZEROS[: end - start], start)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, for example by SIGSTOP; False where it is unknown."""
    with suppress(OSError):
        return _read_status(pid)[0] == "T"
    return False


def shows_processes() -> bool:
    """Whether this system shows the CPU time of other processes. macOS does not."""
    return PROCESSES.is_dir()


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of another process so far; 0 if it has ended."""
    with suppress(OSError):
        fields = _read_status(pid)
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0


def _read_status(pid: int) -> list[str]:
    """The fields of a process from the third on. Raises `OSError` if it has ended."""
    text = (PROCESSES / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()  # the name may contain spaces and parentheses


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
