"""Forecast a run before it starts: its length, cache, downloads, cost, and speed.

    options of a loader ─► plan_run ─► RunPlan ─► text, JSON, PNG, HTML page
                             │
         budget ─► rows ─► documents ─► shards, nodes ─► bytes in use, downloads ─► cost

    plan_run    `plan_run`, and the reader's speed    shard_uses   when a node uses a shard
    request     the run to forecast, its prices       nodes        caches, downloads, costs
    budget      tokens, steps, or epochs to rows      result       the result and its figures
    cases       real or sampled lengths               plan_report  as text, an HTML page, a PNG
    node_reads  the documents that nodes read

A forecast value is a `Figure`: exact, or an estimate with its range.
"""
