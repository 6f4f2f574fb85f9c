"""Engines for units of work on a cluster.

    ray  `RayExecutor`

Pass one as `executor=` to the converter or the count.
"""
