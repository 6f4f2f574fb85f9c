"""Forecast a run before it starts: its length, cache, downloads, cost, and speed.

    options of a loader ─► plan_run ─► RunPlan ─► text, JSON, PNG, HTML page
                             │
         budget ─► rows ─► documents ─► shards, nodes ─► bytes in use, downloads ─► cost

    plan_run       `plan_run`                         node_cache  one cache: bytes, downloads
    asked_run      the run to forecast                prices      downloads to cost (`prices.yaml`)
    budget         tokens, steps, or epochs to rows   speed       the reader, on real shards
    cases          real or sampled lengths            run_plan    the result
    drawn_lengths  lengths drawn from a sample        figure      exact, or with a range
    reading        the documents that a run reads     words       the result as text
    document_uses  rows to documents, shards, nodes   page        as an HTML page
    shard_uses     when a node uses a shard           picture     as a PNG
    nodes          caches, downloads, costs by node

A forecast value is a `Figure`: exact, or an estimate with its range.
"""

from cloudload.tools.forecast.figure import Figure as Figure
from cloudload.tools.forecast.plan_run import plan_run as plan_run
from cloudload.tools.forecast.run_plan import NodePlan as NodePlan
from cloudload.tools.forecast.run_plan import Point as Point
from cloudload.tools.forecast.run_plan import RunPlan as RunPlan
from cloudload.tools.forecast.run_plan import StreamPlan as StreamPlan
