"""The order in which documents are read: integers in, integers out.

    shards ─► samples of an epoch ─► shuffled ─► one order per epoch     canonical order
              position ─► lane and ordinal                               lanes
              row ─► lane, rank, worker; in a mixture, row ─► stream

    spec                the inputs of an order        layout          lanes, nodes, blocks of a run
    streaming_shuffles  Streaming's, bit for bit      lanes           position to lane, row to rank
    seekable            our shuffle, by position      uneven_deal     rows for an uneven world
    bijection           keyed permutation             mixture         row to stream, and back
    epoch_order         one epoch's order, sampled    mixture_counts  rows per lane and stream
    order_cache         orders cached on disk

Only `epoch_orders` touches the disk or starts a process. Orders, layouts and mixtures do not depend
on the world size.
"""
