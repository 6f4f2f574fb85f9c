"""Token lengths: the number of tokens of each sample, counted once and kept beside the dataset.

    shards ──► groups of shards ──► 00000.lengths, 00001.lengths, …     index.json, written last
               cut by the index     2 bytes per sample                  groups, hashes, totals

    lengths of samples, order ──► lane tables ──► the cursor of every lane at any row

A **length** is the number of tokens of a sample's text, without bos and eos. Lengths depend on the
data, the tokenizer, the text column and the transform, which make up their key. They do not depend
on `seq_len`, the packing, bos, eos, `min_tokens`, the mixture or the world size, so one file serves
every run. Lengths never change a row, a batch, a state or a statistic. They save work, and are
required only for what must know rows in advance, such as a mixture whose streams end.

    index         groups, and their index       mixture_search   the rows at which streams end
    group_file    the file of a group           mixture_ending   the tails after these rows
    key           what lengths depend on        best_fit_walker  `best_fit` lanes at a later row
    files         read, verify, share           played_lanes     pack their lengths, without text
    open          the lengths that a run uses   lane_marks       their saved states
    sizes         sizes of a lane's documents   best_fit_rows    documents in rows of such lanes
    tables        sums over lanes               row_finder       documents in any row
    table_search  find units and sums           row_pieces       documents in rows of lanes
    run_lengths   the positions of a run        occurrences      rows that contain a document
    advance       lanes at a later row          working_set      shard bytes in use
    ending        the end of a finite run
"""
