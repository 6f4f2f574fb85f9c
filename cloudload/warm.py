"""Fetch shards before a run; see `cloudload.tools.warm`."""

from __future__ import annotations

from cloudload.tools.warm import WarmReport as WarmReport
from cloudload.tools.warm import warm_cache as warm_cache
