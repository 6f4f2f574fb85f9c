"""Forecast a run before it starts: its length, cache, downloads, and speed.

    options of a loader ─► plan_run ─► RunPlan ─► text, JSON
                             │
         budget ─► rows ─► documents ─► shards, nodes ─► bytes in use, downloads

    plan_run    `plan_run`, and the reader's speed    shard_uses   when a node uses a shard
    request     the run to forecast       nodes        caches, downloads
    budget      tokens, steps, or epochs to rows      result       the result and its figures
    cases       real or sampled lengths               plan_report  the result as text
    node_reads  the documents that nodes read         slowest_rank  the attention of ranks

A forecast value is a `Figure`: exact, or an estimate with its range.
"""
