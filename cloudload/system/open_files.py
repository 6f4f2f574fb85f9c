"""How many files a process may have open."""

from __future__ import annotations

import resource

_MOST_DESCRIPTORS = 1 << 16


def allow_descriptors() -> None:
    """Raise this process's soft limit of open files, which on most systems is far below the hard
    one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
