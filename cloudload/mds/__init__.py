"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    {"version": 2, "shards": [entry of each shard, …]}          index
    shard         uint32 count │ uint32 offsets[count + 1] │ JSON header │ samples
    sample        uint32 size of each variable-sized column │ the columns' bytes, by column name

    dataset ─► index        list the shards       writer ─► codecs, hashes ─► a shard's bytes
    shard                   read one sample       codecs, hashes: of stored shards

The format is MosaicML Streaming's (`streaming/base/format/mds`). A test checks that `writer` writes
the same bytes as its `MDSWriter`. Nothing here trusts its input: names may not leave their folder,
the index bounds all sizes, and nothing is unpickled. Other packages may use every name without an
underscore.
"""
