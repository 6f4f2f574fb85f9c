"""The order in which documents are read: integers in, integers out.

    shards ─► samples of an epoch ─► shuffled ─► one order per epoch     canonical order
              position ─► lane and ordinal                               lanes
              row ─► lane, rank, worker; in a mixture, row ─► stream

    spec                the inputs of an order      layout          lanes, nodes, blocks of a run
    sampling            `repeat` and `choose`       lanes           position to lane, row to rank
    streaming_shuffles  Streaming's, bit for bit    dealing         rows for an uneven world
    seekable            our shuffle, by position    mixture         row to stream
    bijection           keyed permutation           mixture_step    how far a row advances
    spans               shards per canonical node   mixture_counts  rows per lane and stream
    canonical           one epoch's order           stream_ends     where streams end
    epoch_orders        orders cached on disk       order_ids       whether NumPy shuffles alike

Only `epoch_orders` touches the disk or starts a process. Orders, layouts and mixtures do not depend
on the world size.
"""
