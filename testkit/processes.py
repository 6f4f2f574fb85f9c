"""The live child processes of a process, found in /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(pid: int) -> set[int]:
    """The PIDs of the live children of a process, except Python's resource tracker."""
    children = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
            )
            is_tracker = b"resource_tracker" in status.with_name("cmdline").read_bytes()
            if (
                int(fields["PPid"]) == pid
                and not fields["State"].startswith("Z")
                and not is_tracker
            ):
                children.add(int(fields["Pid"]))
    return children
