"""Token lengths: the number of tokens of each sample, counted once and kept beside the dataset.

    shards ──► groups of shards ──► 00000.lengths, 00001.lengths, …     index.json, written last
               cut by the index     2 bytes per sample                  groups, hashes, totals

    lengths of samples, order ──► lane tables ──► the cursor of every lane at any row

A **length** is the number of tokens of a sample's text, without bos and eos. Lengths depend on the
data, the tokenizer, the text column and the transform, which make up their key. They do not depend
on `seq_len`, the packing, bos, eos, `min_tokens`, the mixture or the world size, so one file serves
every run. Lengths never change a row, a batch, a state or a statistic. They only save work.

    group_file   the bytes of a group         index     the groups of a dataset, and their index
    key          the inputs of lengths        files     read, verify, map
    open         the lengths for a run        sizes     the documents of lanes
    tables       sums over a lane             advance   lanes at a later row
    ending       the end of a finite run       learned   lengths of the documents that a run reads
    run_lengths  positions of a run            working_set  shards in use, with lane drift
    table_search units and sums in tables
"""
