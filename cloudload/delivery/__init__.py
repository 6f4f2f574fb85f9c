"""Turn blocks into batches in the training process, and communicate between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes          tail_exchange: end of a finite run
                         exchange ◄──── other ranks            run_log: positions and statistics

    block_stream   the blocks of an iteration's workers, batch by batch
    tail_sharing   documents of a finite run's tail, read by the owners of lanes for all workers
    regular_reader rows by number, read ahead, for `row_dataset`
    known_lanes    cursors of all lanes from token lengths, instead of exchanged
    passes         iterations over the loader, which `stop_every` ends
    world          the ranks, and this process's place among them
    agreement      the values that all ranks must agree on
    environment    the processes of a job; in tests, a thread_environment replaces them
    working_set    the bytes of shards that a node uses at a time
    description    the values that the loader resolved
    start_log      the log of a loader's start, on one rank

Above it, `cloudload.session` puts these modules to use.
"""
