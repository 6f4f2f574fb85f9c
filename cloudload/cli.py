"""The command line; see `cloudload.tools.cli`."""

from __future__ import annotations

from cloudload.tools.cli import main as main
