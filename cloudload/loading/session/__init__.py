"""The parts of a loader, which open its run, prepare plans, read batches and save states.

    options ─► opening ─► current_run ─► preparation ─► reader ─► passes over batches
                            ▲    │         ▲
                      load ─┘    └─► save  │
                           saving       membership

    opening      options to a run                   saving        current run to state, and back
    current_run  its recipe and progress            membership    the rank in its world
    preparation  the plan of an iteration           batch_counts  the length of a pass
    reader       batches, one iteration at a time

Only the loader and `forecast` import these modules.
"""
