"""The parts of one loader: its run opened, plans prepared, batches read, states saved.

    options ─► opening ─► current_run ─► preparation ─► reader ─► passes over batches
                            ▲    │         ▲    ▲
                      load ─┘    └─► save  │    └── learning: lengths for later runs
                           saving       membership: the rank in its world
                                        batch_counts: the length of a pass

Only `cloudload.loader` imports these modules.
"""
