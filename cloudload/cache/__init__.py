"""The shard cache of a node: shards are downloaded, checked, shared, and evicted by LRU.

    reader ──shard(7)──► shard_cache   mapped already? ──────────────────────► Shard
                              │ no
                         fetch         cached and valid? ─────► map it
                              │ no       under the shard's lock: reserve ─► download ─► rename
                         folder        names, sweeping
                         space         bytes reserved within the limit, eviction
                         download      store ─► raw shard, size and hash checked
                         counters      hits, misses, bytes

    usage             the bytes of shards that are in use at a time
    memory_shards     shards that are read once, one after another, without a file

Workers use `ShardCache`. The loader uses `default_cache` and `open_cache_folder`. The cache has no
daemon and no index, because the files and their locks are its only state. The account of their
bytes only saves listings, and may be removed at any time.
"""
