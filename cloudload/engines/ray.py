"""Run units of work on a Ray cluster; see `cloudload.tools.engines`."""

from cloudload.tools.engines.ray import RayExecutor as RayExecutor
