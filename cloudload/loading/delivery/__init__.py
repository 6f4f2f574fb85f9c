"""Turn blocks into batches in the training process, and communicate between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes
                         exchange ◄──── other ranks

    iteration     blocks to batches                     world        the processes of a job
    block_stream  blocks of workers, by batch           rank_checks  values equal on all ranks
    collate       join blocks into tensors              description  resolved options
    exchange      share the cursors of all lanes        start_log    the log of a start
    all_gather    all-gather in a tree                  working_set  a node's shard bytes in use
    progress      merge reports of ranks, or lengths    run_log      waits, positions, statistics
    tail_sharing  the tail's documents, by exchange
    bottleneck    the stage that limits the workers

`cloudload.loading.reader` and `passes` combine these modules to the passes of a loader.
"""
