"""Turn blocks into batches in the training process, and communicate between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► passes ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes
                         exchange ◄──── other ranks

    passes         passes over the loader            regular_reader      rows by index, read ahead
    iteration      blocks to batches, by phase       world               the ranks of a run
    block_stream   blocks of workers, by batch       environment         the processes of a job
    collate        join blocks into tensors          thread_environment  ranks as threads, for tests
    exchange       share the cursors of all lanes    agreement           values equal on all ranks
    gather         all-gather in a tree              description         resolved options
    progress       merge reports of ranks            start_log           the log of a loader's start
    known_lanes    cursors from token lengths        wait_log            why the training loop waits
    tail_exchange  pack one tail on all ranks        working_set         a node's shard bytes in use
    tail_sharing   exchange the tail's documents     run_log             positions and statistics
    repeated_downloads    warn of shards that several machines download

The package `cloudload.loading.session` combines these modules into a loader.
"""
