"""Detect whether a folder is on a network file system.

On a network file system, another machine can remove a file that a process on this machine has
mapped. If the process then reads the mapped memory, SIGBUS kills it. Locks may work only between
processes of one machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = re.compile(
    "nfs4?|cifs|smb3|smbfs|afs|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|wekafs"
    # most other FUSE file systems are remote, such as fuse.sshfs, fuse.gcsfuse, and fuse.juicefs
    r"|fuse(\.(?!fuse-overlayfs|mergerfs|bindfs|lxcfs).*)?"
)


def network_type(folder: Path) -> str | None:
    """The type of the network file system that a folder is on, or will be on once it is created.

    Returns None for a local file system, and if the type is unknown.
    """
    with contextlib.suppress(OSError, StopIteration, IndexError):
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        device = os.stat(existing).st_dev
        for line in _MOUNTS.read_text(errors="replace").splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                kind = source.split()[0]
                return kind if _NETWORK.fullmatch(kind) else None
    return None
