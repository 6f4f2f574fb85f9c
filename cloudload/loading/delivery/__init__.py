"""Turn blocks into batches in the training process, and communicate between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► passes ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes
                         exchange ◄──── other ranks

    passes        passes over the loader                world        the ranks of a run
    iteration     blocks to batches                     environment  the processes of a job
    block_stream  blocks of workers, by batch           rank_checks  values equal on all ranks
    collate       join blocks into tensors              description  resolved options
    exchange      share the cursors of all lanes        start_log    the log of a start
    all_gather    all-gather in a tree                  working_set  a node's shard bytes in use
    progress      merge reports of ranks, or lengths    run_log      waits, positions, statistics
    tail_sharing  the tail's documents, by exchange

The package `cloudload.loading.session` combines these modules into a loader.
"""
