"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    {"version": 2, "shards": [entry of each shard, …]}          index
    shard         uint32 count │ uint32 offsets[count + 1] │ JSON header │ samples
    sample        uint32 size of each variable-sized column │ the columns' bytes, by column name

    dataset ─► index        what is there         writer ─► codecs, hashes ─► a shard's bytes
    shard                   read one sample       codecs, hashes: of stored shards

The format is MosaicML Streaming's (`streaming/base/format/mds`); the shards that `writer` writes
are byte for byte those of its `MDSWriter`, as a test checks. Nothing here trusts its input: names
may not leave their folder, sizes are bounded by the index, and nothing is unpickled.
Everything without an underscore may be used from other packages.
"""
