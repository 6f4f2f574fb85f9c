"""Forecast a run before it starts; see `cloudload.tools.forecast`."""

from __future__ import annotations

from cloudload.tools.forecast import Figure as Figure
from cloudload.tools.forecast import NodePlan as NodePlan
from cloudload.tools.forecast import Point as Point
from cloudload.tools.forecast import RunPlan as RunPlan
from cloudload.tools.forecast import StreamPlan as StreamPlan
from cloudload.tools.forecast import plan_run as plan_run
