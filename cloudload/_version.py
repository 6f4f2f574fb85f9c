"""The version of cloudload, for modules that cannot import the package root."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cloudload")
except PackageNotFoundError:
    __version__ = "0.0.0"
