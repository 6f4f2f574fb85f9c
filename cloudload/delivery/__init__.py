"""Blocks to batches in the training process, and ranks in step.

    workers ─► blocks ─► iteration ─► collate ─► Batch ─► training loop
                            │  ▲
                   progress ▼  │ cursors of all lanes          tail_exchange: end of a finite run
                         exchange ◄──── other ranks            run_log: what the loader saves

    passes         where `stop_every` ends an iteration over the loader
    world          this process's place among the ranks; agreement: what they must agree on
    environment    where ranks and workers run; cloudload.testing brings its own
    working_set    the bytes of shards in use on a node; description: what the loader settled

From outside, only `cloudload.loader` and `cloudload.testing` use these.
"""
