"""Versions of installed packages. Each is read once per process, because that parses a file."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def package_version(name: str) -> str | None:
    """The version of an installed package; None if the package is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
