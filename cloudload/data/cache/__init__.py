"""The shard cache of a node: shards are downloaded, checked, shared, and evicted by LRU.

    reader ──shard(7)──► shard_cache   mapped already? ──────────────────────► Shard
                              │ no
                         fetch         cached and valid? ─────► map it
                                         no ─► under the shard's lock: reserve, download, rename

    shard_cache      map and prefetch shards    counters       hits, misses, bytes
    fetch            download once per node     memory_shards  shards read once, no file
    cache_folder     names and cleanup          republished    data replaced during a run
    kept_tokenizers  a tokenizer's results

The cache has no daemon and no index, because the files and their locks are its only state. The
account of the bytes in use only saves listings, and may be removed at any time.
"""
