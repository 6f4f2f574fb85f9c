"""Versions of installed packages. The version of an imported package cannot change, so it is read
only once, because that parses a file. Other packages may be installed while a notebook runs."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata


def package_version(name: str) -> str | None:
    """The version of an installed package; None if the package is not installed.

    `name` is the name of both the package and its module.
    """
    return _read_once(name) if name in sys.modules else _read(name)


def _read(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


_read_once = cache(_read)
