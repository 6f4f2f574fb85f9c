"""Forecast a run before it starts; see `cloudload.tools.forecast`."""

from __future__ import annotations

from cloudload.tools.forecast.plan_run import plan_run as plan_run
from cloudload.tools.forecast.result import Figure as Figure
from cloudload.tools.forecast.result import NodePlan as NodePlan
from cloudload.tools.forecast.result import RunPlan as RunPlan
from cloudload.tools.forecast.result import StreamPlan as StreamPlan
