"""The running processes of this machine, found in /proc."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that has not ended."""

    pid: int
    parent: int
    session: int


def running_processes() -> Iterator[Process]:
    """All processes that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # the name before the last parenthesis may contain spaces and parentheses
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                yield Process(int(path.parent.name), int(fields[1]), int(fields[3]))


def children_of(pid: int) -> set[int]:
    """The PIDs of the running children of a process, except Python's resource tracker."""
    children = {each.pid for each in running_processes() if each.parent == pid}
    return {child for child in children if b"resource_tracker" not in command_of(child)}


def command_of(pid: int) -> bytes:
    """The command line of a process, or empty bytes if the process has ended."""
    return _read(pid, "cmdline")


def environment_of(pid: int) -> bytes:
    """The environment with which a process started, or empty bytes if it may not be read."""
    return _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
