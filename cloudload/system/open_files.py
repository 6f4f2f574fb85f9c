"""The limit on open files."""

from __future__ import annotations

import resource

_MOST_OPEN_FILES = 1 << 16


def raise_open_file_limit() -> None:
    """Raise this process's soft limit on open files to the hard limit, but not above 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
