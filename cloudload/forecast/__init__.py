"""Forecast a run before it starts: its length, cache, downloads, cost, and speed.

    options of a loader ─► plan_run ─► RunPlan ─► text, JSON, PNG, HTML page

    cases          token lengths, or lengths drawn from a sample
    budget tokens, steps, or epochs ─► rows
    document_uses  rows ─► documents, shards, nodes
    shard_uses     ─► when each node uses each shard
    node_cache     uses ─► bytes in use, downloads
    prices         downloads ─► cost
    speed          the reader, measured on real shards

Every value is a `Figure`: exact, or an estimate with its range.
"""

from cloudload.forecast.figure import Figure as Figure
from cloudload.forecast.plan_run import plan_run as plan_run
from cloudload.forecast.run_plan import NodePlan as NodePlan
from cloudload.forecast.run_plan import Point as Point
from cloudload.forecast.run_plan import RunPlan as RunPlan
from cloudload.forecast.run_plan import StreamPlan as StreamPlan
