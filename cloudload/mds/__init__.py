"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    {"version": 2, "shards": [entry of each shard, …]}          index
    shard         uint32 count │ uint32 offsets[count + 1] │ JSON header │ samples
    sample        uint32 size of each variable-sized column │ the columns' bytes, by column name

    dataset ─► open_index   list the shards       writer            samples ─► a raw shard's bytes
      index_parser ─► index, shard_table          fingerprints      of the shards, for states
    shard                   read samples          codecs, hashes    compress and check stored shards
    token_columns           read token IDs        document_columns  check the columns of documents
    not_a_dataset ─► survey, raw_files            explain a location without an index
    download                fetch a stored shard, and check it

The format is MosaicML Streaming's (`streaming/base/format/mds`). Tests check that `writer` produces
the same bytes as its `MDSWriter`, except for a hash that it adds to the index (`hashes`). All input
is untrusted, so file names may not leave their folder, the index limits all sizes, and nothing is
unpickled. Other packages may use every name without an underscore.
"""
