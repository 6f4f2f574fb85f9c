"""Blocks to batches in the training process, and communication between ranks.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes          tail_exchange: end of a finite run
                         exchange ◄──── other ranks            run_log: what the loader saves

    passes         iterations over the loader, which `stop_every` ends
    world          this process's place among the ranks
    agreement      the values that all ranks must agree on
    environment    the place where ranks and workers run; cloudload.testing replaces it
    working_set    the bytes of shards in use on a node
    description    the values that the loader resolved

Among other packages, only `cloudload.loader` and `cloudload.testing` use these.
"""
