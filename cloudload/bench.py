"""Measure a loader alone; see `cloudload.tools.bench`."""

from __future__ import annotations

from cloudload.tools.bench import LoaderSpeed as LoaderSpeed
from cloudload.tools.bench import measure_loader as measure_loader
