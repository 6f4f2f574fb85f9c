"""Bytes by URL, MDS datasets in them, and the shards that this node keeps.

    URL ─► storage ─► bytes ─► mds ─► index, shards, samples
                                 cache ─► the shards of this node, checked and shared

    storage  objects by URL      cache       shards on this node
    mds      the shard format    file_kinds  which files are text

What comes from a store or a dataset is untrusted, and checked in this room.
"""
