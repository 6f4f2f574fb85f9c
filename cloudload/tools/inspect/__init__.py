"""Inspect an MDS dataset without a loader: summarize it, and read its documents.

    index.json ─────────────────────────────► info        counts, bytes, columns, codecs, hashes
         └─► the first bytes of a few shards ─► sample sizes ─┘
         └─► the first bytes, or whole shards ─► samples      the first ones, one ID, a pattern

    info  `read_info`    samples  `read_samples`    turns  show messages by role

Nothing is written to the dataset or to a cache.
"""
