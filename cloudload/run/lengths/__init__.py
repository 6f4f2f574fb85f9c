"""Token lengths: the number of tokens of each sample, counted once and kept beside the dataset.

    shards ──► groups of shards ──► 00000.lengths, 00001.lengths, …     index.json, written last
               cut by the index     2 bytes per sample                  groups, hashes, totals

    lengths of samples, order ──► lane tables ──► the cursor of every lane at any row

A **length** is the number of tokens of a sample's text, without bos and eos. Lengths depend on the
data, the tokenizer, the text column and the transform, which make up their key. They do not depend
on `seq_len`, the packing, bos, eos, `min_tokens`, `max_tokens`, the mixture or the world size, so
one file serves every run. Lengths never change a row, a batch, a state or a statistic. They save
work, and are required only for what must know rows in advance, such as a mixture whose streams end.

    lengths_index         groups, their index, their key
    length_files          read, verify, share
    open                  the lengths that a run uses
    sizes                 sizes of a lane's documents
    lane_tables           sums over lanes, and searches
    run_lengths           the positions of a run
    lane_walker           lanes at a later row
    ending                the ends of finite runs
    mixture_search        the rows where streams end
    best_fit_walker       `best_fit` lanes at a later row
    best_fit_simulation   pack lengths, without text
    best_fit_checkpoints  saved states of that
    row_finder            documents in any row
    row_pieces            documents in rows of lanes
    rows_of_document      rows that contain a document
"""
