"""Turn blocks into batches in the training process, and communicate between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► passes ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes
                         exchange ◄──── other ranks

    passes        passes over the loader                world        the processes of a job
    iteration     blocks to batches                     rank_checks  values equal on all ranks
    block_stream  blocks of workers, by batch           description  resolved options
    collate       join blocks into tensors              start_log    the log of a start
    exchange      share the cursors of all lanes        working_set  a node's shard bytes in use
    all_gather    all-gather in a tree                  run_log      waits, positions, statistics
    progress      merge reports of ranks, or lengths
    tail_sharing  the tail's documents, by exchange
    bottleneck    the stage that limits the workers

`cloudload.loading.reader` combines these modules to the passes of a loader.
"""
